# `rankwise tclsh` where its Python has no Tcl: a stock tclsh runs this file, which makes the torch::
# commands and then runs the script in argv with its arguments; without one it is a shell.

source [file join [file dirname [info script]] torchtcl.tcl]
fconfigure stdout -buffering line

proc ::torch::Shell {} {
    set ::tcl_interactive 1
    puts "torch::help lists the topics, exit or Ctrl-D ends. History and completion need a Python with tkinter."
    set script ""
    while 1 {
        puts -nonewline [expr {$script eq "" ? "% " : "> "}]
        flush stdout
        if {[gets stdin line] < 0} {
            puts ""
            return
        }
        append script $line \n
        if {![info complete $script]} {
            continue
        }
        if {[catch {uplevel #0 $script} result]} {
            puts stderr $result
        } elseif {$result ne ""} {
            puts $result
        }
        set script ""
    }
}

if {$argc == 0} {
    ::torch::Shell
    exit
}
set argv [lassign $argv argv0]
incr argc -1
if {[catch {source -encoding utf-8 $argv0}]} {
    # Of how the script was run, only (file "..." line ...) is of interest.
    regsub {\n    invoked from within\n"source -encoding utf-8 \$argv0"$} $errorInfo "" errorInfo
    puts stderr $errorInfo
    exit 1
}
exit

# torchtcl: the torch:: commands in a stock tclsh.
#
# Python does the work, in a child that this script starts and talks to over a pipe; the tensors stay
# there, and rankwise/frontends/tcl/serve.py describes the talk. libtorchtcl.so holds this script too,
# and sets torchtcl_folder, the folder that it lies in, before it runs it.

package require Tcl 8.6-
namespace eval ::torch {
    variable channel ""
    variable lost ""
    variable folder [file dirname [file normalize [info script]]]
    if {[info exists ::torchtcl_folder]} {
        set folder $::torchtcl_folder
        unset ::torchtcl_folder
    }
}

# The Python that rankwise is installed in: the one named, the one whose packages this file lies
# among, or the one on the PATH.
proc ::torch::FindPython {} {
    variable folder
    if {[info exists ::env(RANKWISE_TCL_PYTHON)]} {
        return $::env(RANKWISE_TCL_PYTHON)
    }
    set name python3
    if {[regexp {^(.*)/lib/(python3[.]\d+)/[^/]*-packages/rankwise/} $folder -> prefix name]} {
        set beside [file join $prefix bin $name]
        if {[file executable $beside]} {
            return $beside
        }
    }
    return $name
}

proc ::torch::Start {} {
    variable channel
    variable lost
    set python [FindPython]
    set lost "$python cannot run rankwise; RANKWISE_TCL_PYTHON may name the Python that rankwise is installed in"
    if {[catch {open |[list $python -m rankwise.frontends.tcl.serve 2>@stderr] r+} channel]} {
        return -code error "torchtcl: $lost ($channel)"
    }
    fconfigure $channel -translation binary -buffering full
    lassign [Request] code definitions why
    if {$code ne "ok"} {
        return -code error -errorcode $why $definitions
    }
    set lost "its Python process has ended"
    namespace eval :: $definitions
}

# Have Python run a command: {ok result NONE} or {error message errorCode}.
proc ::torch::Request args {
    variable channel
    variable lost
    set lengths {}
    set words ""
    foreach word $args {
        set bytes [encoding convertto utf-8 $word]
        lappend lengths [string length $bytes]
        append words $bytes
    }
    if {[catch {
        puts -nonewline $channel $lengths\n$words
        flush $channel
        if {[gets $channel header] < 0} {
            error "end of file"
        }
    }]} {
        catch {close $channel} how
        return [list error "torchtcl: $lost[expr {$how eq "" ? "" : " ($how)"}]" {RANKWISE PythonLost}]
    }
    set text [encoding convertfrom utf-8 [read $channel [lindex $header 1]]]
    return [list [lindex $header 0] $text [lrange $header 2 end]]
}

::torch::Start
package provide torchtcl 1.0

package ifneeded torchtcl 1.0 [list source [file join $dir torchtcl.tcl]]

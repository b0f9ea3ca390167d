# Four patterns of distributed work in Tcl.
#
#     rankwise tclsh examples/patterns.tcl            this process alone
#     rankwise run -n 4 examples/patterns.tcl         four ranks

package require torchtcl

puts [torch::distributed_init -rank [torch::get_rank] -worldSize [torch::get_world_size]]
set rank [torch::get_rank]
set ranks [torch::get_world_size]

# Print a text once, on rank 0.
proc say {text} {
    if {$::rank == 0} {
        puts $text
    }
}

# ---- scatter, compute, gather ----
# Rank 0's data is scattered, each rank squares its part, and rank 0 gathers the results.

proc scatter_gather {} {
    set data [torch::arange [expr {2 * $::ranks}] float32]
    set part [torch::distributed_scatter $data 0]
    set squares [torch::tensor_mul $part $part]
    set all [torch::distributed_gather $squares 0]
    # On rank 0 one row per rank; on the others a tensor without rows, so that all ranks run the same script.
    say "scatter and gather: the squares [torch::tensor_to_list $all], shape [torch::tensor_shape $all]"
}

# ---- data loading ----
# Each rank loads its own part of a file, once rank 0 has written it.

proc load_distributed_data {file} {
    if {$::rank == 0} {
        torch::tensor_save [torch::rand {10 3}] $file
    }
    torch::distributed_barrier
    set all [torch::tensor_load $file]
    set start [expr {10 * $::rank / $::ranks}]
    set end [expr {10 * ($::rank + 1) / $::ranks}]
    set mine [torch::tensor_slice $all 0 $start $end]
    # Compute the mean over all rows from the sums of the parts, and compare it with the file's mean.
    set sum [torch::distributed_all_reduce [torch::tensor_sum $mine] sum]
    set mean [torch::tensor_div $sum [torch::tensor_numel $all]]
    set difference [expr {[torch::tensor_item $mean] - [torch::tensor_item [torch::tensor_mean $all]]}]
    if {abs($difference) > 1e-6} {
        error "the parts do not make up the file: the means differ by $difference"
    }
    say "data loading: all $::ranks parts are there, and their mean is that of the file"
}

# ---- checkpoint coordination ----
# Only rank 0 writes; the others wait for it, and then all ranks continue with the same weights.

proc save_checkpoint {weights file} {
    if {$::rank == 0} {
        torch::tensor_save $weights $file
    }
    torch::distributed_barrier
    set restored [torch::tensor_load $file]
    set everyones [torch::distributed_all_reduce [torch::tensor_sum $restored] sum]
    say "checkpoint: [file size $file] bytes, restored on $::ranks ranks, [torch::tensor_item $everyones] in total"
}

# ---- profiling with barriers ----
# The time of a barrier after the work is the time that this rank waited for the slowest one.

proc profile_training_step {} {
    torch::distributed_barrier
    set start [clock milliseconds]
    after [expr {20 * (1 + $::rank)}]
    set compute [expr {[clock milliseconds] - $start}]
    set start [clock milliseconds]
    torch::distributed_barrier
    set barrier [expr {[clock milliseconds] - $start}]
    set times [torch::tensor_create [list $compute $barrier] int32]
    set all [torch::tensor_to_list [torch::distributed_gather $times 0]]
    set number 0
    foreach {compute barrier} $all {
        say "profiling: rank $number worked ${compute} ms and waited ${barrier} ms"
        incr number
    }
}

# A folder that only this job uses: its name contains rank 0's process id, which rank 0 broadcasts.
set job [torch::tensor_item [torch::distributed_broadcast [torch::full {1} [pid] int64] 0]]
set folder [file join [expr {[info exists env(TMPDIR)] ? $env(TMPDIR) : "/tmp"}] patterns-$job]
file mkdir $folder

scatter_gather
load_distributed_data [file join $folder data.npy]
save_checkpoint [torch::full {4 4} 0.5 float32] [file join $folder weights.npy]
profile_training_step

torch::distributed_barrier
if {$rank == 0} {
    file delete -force $folder
}

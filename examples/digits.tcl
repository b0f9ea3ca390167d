# Softmax regression on handwritten digits, data-parallel, with the tensor commands.
#
#     rankwise tclsh examples/digits.tcl            alone: one rank
#     rankwise run -n 4 examples/digits.tcl         four ranks, the same numbers
#
# Optional arguments: a folder for the images (default out), and the number of passes over them (default 30).
#
# Each step takes one batch, the same whatever the number of ranks, and scatters its rows over the
# ranks. A rank computes the loss and the gradient of its own rows, summed; distributed_all_reduce
# adds up these sums, and every rank divides by the size of the batch. So every rank takes the step
# that a single rank would take. Rank 0 checks that at the end, by training alone on the same batches.
#
# The images come with scikit-learn; Python writes them to files for torch::tensor_load.

package require torchtcl

set folder [expr {$argc > 0 ? [lindex $argv 0] : "out"}]
set epochs [expr {$argc > 1 ? [lindex $argv 1] : 30}]
set batch 64
set rate 0.5

# Pixels in 0..1 and a 1 in front, whose weight is the bias; labels as rows with a 1 at the digit.
set export {
import sys
import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
np.save(sys.argv[1], np.hstack([np.ones((len(images), 1)), images[order] / 16.0]))
np.save(sys.argv[2], np.eye(10)[labels[order]])
}

# ---- tensors that are freed at the end of a step ----

proc temporary {tensor} {
    lappend ::temporaries $tensor
    return $tensor
}

proc free_temporaries {} {
    foreach tensor $::temporaries {
        torch::tensor_delete $tensor
    }
    set ::temporaries {}
}

# ---- the model ----

# The probability of each digit for each image: (n, 10).
proc chances {images weights} {
    set scores [temporary [torch::tensor_matmul $images $weights]]
    set largest [temporary [torch::tensor_max -tensor $scores -dim 1 -keepdim 1]]
    set powers [temporary [torch::tensor_exp [temporary [torch::tensor_sub $scores $largest]]]]
    set sums [temporary [torch::tensor_sum -tensor $powers -dim 1 -keepdim 1]]
    return [temporary [torch::tensor_div $powers $sums]]
}

# The sum of the cross-entropy over the images, and its gradient.
proc loss_and_gradient {images labels weights} {
    set chances [chances $images $weights]
    set logs [temporary [torch::tensor_mul $labels [temporary [torch::tensor_log $chances]]]]
    set loss [temporary [torch::tensor_sum [temporary [torch::tensor_mul $logs -1]]]]
    set errors [temporary [torch::tensor_sub $chances $labels]]
    set gradient [temporary [torch::tensor_matmul [temporary [torch::tensor_transpose $images]] $errors]]
    return [list $loss $gradient]
}

# Train on all ranks, or if `alone` is true on this one. Returns the weights and the loss of each step.
proc train {images labels alone} {
    set rows [lindex [torch::tensor_shape $images] 0]
    set weights [torch::zeros {65 10} float64]
    set losses {}
    for {set epoch 0} {$epoch < $::epochs} {incr epoch} {
        for {set start 0} {$start < $rows} {incr start $::batch} {
            set end [expr {min($start + $::batch, $rows)}]
            set x [temporary [torch::tensor_slice $images 0 $start $end]]
            set y [temporary [torch::tensor_slice $labels 0 $start $end]]
            if {!$alone} {
                set x [temporary [torch::distributed_scatter $x 0]]
                set y [temporary [torch::distributed_scatter $y 0]]
            }
            lassign [loss_and_gradient $x $y $weights] loss gradient
            if {!$alone} {
                set loss [temporary [torch::distributed_all_reduce $loss sum]]
                set gradient [temporary [torch::distributed_all_reduce $gradient sum]]
            }
            set step [temporary [torch::tensor_mul $gradient [expr {$::rate / ($end - $start)}]]]
            temporary $weights
            set weights [torch::tensor_sub $weights $step]
            lappend losses [expr {[torch::tensor_item $loss] / ($end - $start)}]
            free_temporaries
        }
    }
    return [list $weights $losses]
}

# How many of the images the model gets right.
proc right {images labels weights} {
    set said [temporary [torch::tensor_argmax [chances $images $weights] 1]]
    set true [temporary [torch::tensor_argmax $labels 1]]
    return [temporary [torch::tensor_sum [temporary [torch::tensor_eq $said $true]]]]
}

# ---- the job ----

torch::distributed_init -rank [torch::get_rank] -worldSize [torch::get_world_size]
set rank [torch::get_rank]
set ranks [torch::get_world_size]
set temporaries {}

set files [list [file join $folder digits-images.npy] [file join $folder digits-labels.npy]]
if {$rank == 0} {
    file mkdir $folder
    if {[catch {exec $::torch::python -c $export {*}$files} why]} {
        error "the digits could not be written; pip install scikit-learn brings them: $why"
    }
}
torch::distributed_barrier
foreach name {images labels} file $files {
    set all [torch::tensor_load $file]
    set first_test [expr {[lindex [torch::tensor_shape $all] 0] * 4 / 5}]
    set train_$name [torch::tensor_slice $all 0 0 $first_test]
    set test_$name [torch::tensor_slice $all 0 $first_test]
    torch::tensor_delete $all
}
set tests [lindex [torch::tensor_shape $test_images] 0]
if {$rank == 0} {
    puts "$first_test images to train on, $tests to test, $ranks [expr {$ranks == 1 ? "rank" : "ranks"}]"
}

lassign [train $train_images $train_labels 0] weights losses
set mine [right [torch::distributed_scatter $test_images] [torch::distributed_scatter $test_labels] $weights]
set right [torch::tensor_item [torch::distributed_all_reduce $mine sum]]

if {$rank == 0} {
    if {$ranks > 1} {
        lassign [train $train_images $train_labels 1] weights reference
        set largest 0.0
        foreach loss $losses expected $reference {
            set largest [expr {max($largest, abs($loss - $expected))}]
        }
        set expected [torch::tensor_item [right $test_images $test_labels $weights]]
        if {$largest > 1e-9 || $right != $expected} {
            error "differs from the one-rank run: losses by $largest, $right right instead of $expected"
        }
        puts "matches the one-rank run: largest loss difference [format %.1e $largest], the same accuracy"
    }
    puts [format "loss %.4f at the first step, %.4f at the last" [lindex $losses 0] [lindex $losses end]]
    puts [format "test accuracy %.2f %% (%d of %d)" [expr {100.0 * $right / $tests}] $right $tests]
}

# Train a network on handwritten digits on any number of ranks, with a sharded optimizer (ZeRO stage 1).
#
#     rankwise tclsh examples/train.tcl             one rank
#     rankwise run -n 4 examples/train.tcl          four ranks, the same losses
#
# Or in a stock tclsh with TCLLIBPATH=$(rankwise tclsh --package-path). It needs torch and scikit-learn:
# pip install 'rankwise[tcl,examples]'. Optional arguments: a folder for the files (default out), and the
# number of epochs (default 12).
#
# Every rank computes the gradients of its part of a batch. distributed_reduce_scatter sums them and gives
# each rank its shard of the sum; optimizer_step steps this shard of the parameters and gathers all shards.
# So each of n ranks holds 1/n of the optimizer's state.

package require torchtcl

set folder [expr {$argc > 0 ? [lindex $argv 0] : "out"}]
set epochs [expr {$argc > 1 ? [lindex $argv 1] : 12}]
set batch 60
set rate 0.05

# The first 1440 images are for training, in 24 batches that 1 to 6 ranks can share evenly; the other 357 for testing.
set train_rows 1440

set export {
import sys
import numpy as np
from sklearn.datasets import load_digits

images, labels = load_digits(return_X_y=True)
order = np.random.default_rng(0).permutation(len(images))
np.save(sys.argv[1], images[order] / 16.0)
np.save(sys.argv[2], labels[order])
}

# The training step of docs/spec/distributed_reduce_scatter.md. Because it reads a variable `optimizer` that it
# does not define, `train` evaluates its body in place instead of calling it.
proc distributed_training_step {model inputs targets} {
    # Forward pass
    set outputs [torch::model_forward $model $inputs]
    set loss [torch::loss_function $outputs $targets]
    
    # Backward pass
    torch::backward $loss
    
    # Get gradients
    set gradients [torch::model_gradients $model]
    
    # Reduce-scatter gradients
    set aggregated_gradients [torch::distributed_reduce_scatter $gradients "sum"]
    
    # Update model
    torch::optimizer_step $optimizer $aggregated_gradients
}

# A model, the same on every rank.
proc new_model {} {
    torch::manual_seed 0
    set layers [list [torch::linear -inFeatures 64 -outFeatures 64 -dtype float64] [torch::relu]]
    lappend layers [torch::linear -inFeatures 64 -outFeatures 10 -dtype float64]
    return [torch::sequential $layers]
}

# How many of the test images the model recognises, summed over all ranks.
proc count_right {model} {
    set scores [torch::model_forward $model $::test_images]
    set predicted [torch::tensor_argmax $scores 1]
    set equal [torch::tensor_eq $predicted $::test_labels]
    set sum [torch::tensor_sum $equal]
    set all [torch::distributed_all_reduce $sum "sum"]
    set right [torch::tensor_item $all]
    foreach tensor [list $scores $predicted $equal $sum $all] {
        torch::tensor_delete $tensor
    }
    return $right
}

# Train, show the progress on rank 0, and return the loss of each step: the mean over the batch.
proc train {model optimizer} {
    set steps [expr {$::train_rows / $::batch}]
    set losses {}
    for {set epoch 1} {$epoch <= $::epochs} {incr epoch} {
        set sum 0.0
        for {set step 0} {$step < $steps} {incr step} {
            # This rank's rows of the batch.
            set start [expr {$step * $::batch + $::rank * $::batch / $::ranks}]
            set end [expr {$step * $::batch + ($::rank + 1) * $::batch / $::ranks}]
            set inputs [torch::tensor_slice $::images 0 $start $end]
            set targets [torch::tensor_slice $::labels 0 $start $end]

            torch::optimizer_zero_grad $optimizer
            eval [info body distributed_training_step]

            set mean [torch::distributed_all_reduce $loss "mean"]
            lappend losses [torch::tensor_item $mean]
            set sum [expr {$sum + [lindex $losses end]}]
            foreach tensor [list $inputs $targets $outputs $loss $gradients $aggregated_gradients $mean] {
                torch::tensor_delete $tensor
            }
        }
        set accuracy [expr {100.0 * [count_right $model] / $::tests}]
        if {$::rank == 0} {
            set mean [expr {$sum / $steps}]
            puts [format "epoch %2d of %d: loss %.4f, test accuracy %.2f %%" $epoch $::epochs $mean $accuracy]
        }
    }
    return $losses
}

# ---- the job ----

torch::distributed_init -rank [torch::get_rank] -worldSize [torch::get_world_size]
set rank [torch::get_rank]
set ranks [torch::get_world_size]
if {$batch % $ranks} {
    error "$ranks ranks cannot share the $batch rows of a batch evenly"
}

set files [list [file join $folder train-images.npy] [file join $folder train-labels.npy]]
if {$rank == 0} {
    file mkdir $folder
    if {[catch {exec $::torch::python -c $export {*}$files} why]} {
        error "the digits could not be written; they come with scikit-learn (pip install scikit-learn): $why"
    }
}
torch::distributed_barrier
foreach {name file} [list images [lindex $files 0] labels [lindex $files 1]] {
    set all [torch::tensor_load $file]
    set tests [expr {[lindex [torch::tensor_shape $all] 0] - $train_rows}]
    set $name [torch::tensor_slice $all 0 0 $train_rows]
    # Each rank tests on its part of the rest, which distributed_scatter takes from rank 0's tensor.
    set test_$name [torch::distributed_scatter [torch::tensor_slice $all 0 $train_rows] 0]
    torch::tensor_delete $all
}
if {$rank == 0} {
    puts "$train_rows images to train on, $tests to test, $ranks [expr {$ranks == 1 ? "rank" : "ranks"}]"
}

# The step sums the ranks' gradients, each a mean over the rank's rows. The sum is `ranks` times the mean over the
# batch, so the learning rate is divided by `ranks`.
set model [new_model]
set parameters [torch::model_parameters $model]
set optimizer [torch::optimizer_sgd -parameters $parameters -lr [expr {$rate / $ranks}] -momentum 0.9]
set losses [train $model $optimizer]

set bytes [torch::tensor_create [torch::optimizer_state_bytes $optimizer] int64]
set bytes [torch::tensor_to_list [torch::distributed_all_gather $bytes]]
set checkpoint [file join $folder model-$ranks.pt]
if {$rank == 0} {
    torch::model_save $model $checkpoint
    puts "optimizer state: [join $bytes {, }] bytes"
    set out [open [file join $folder losses-$ranks.txt] w]
    puts $out [join $losses "\n"]
    close $out
}
torch::distributed_barrier

# Every rank tests the model that rank 0 saved.
set right [count_right [torch::model_load $checkpoint]]
if {$rank == 0} {
    puts [format "test accuracy %.2f %% (%d of %d)" [expr {100.0 * $right / $tests}] $right $tests]
}

// Time to report a loss, where a launcher ends the ranks that survive it.
#pragma once

namespace rankwise {

// Unless the program has an action of its own for SIGTERM, this process ends some time after it: kToFindLoss, or
// kToReportLoss if it has found a rank lost by then. torchrun sends SIGTERM as soon as it has seen one rank end,
// perhaps before the others have printed why.
void defer_termination();
// This process has found a rank lost, and its program is about to get the error.
void loss_found();

}  // namespace rankwise

// Python as the program that embeds the engine.
#pragma once
#include "sync/embedding.hpp"

rankwise::Embedding& python();
// Whether a frame of this file only passes a call on: in this package, in mpi4py or torch.distributed, or in Python's
// frozen modules.
bool passes_call_on(const char* file);

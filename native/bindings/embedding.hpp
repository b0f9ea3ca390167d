// Python as the program that embeds the engine.
#pragma once
#include "sync/embedding.hpp"

rankwise::Embedding& python();

// Purpose:  GET /metrics: the engine's and the HTTP side's numbers by name.
// Shapes:   none.
// Units:    as the names say; counters end with _total.
// Memory:   by value.
// Threads:  pure function.
// Errors:   none.
// Source:   api.md 12 (names of both families).
#pragma once

#include <string>

#include "k3/server/api/context.h"

namespace k3::server {

// vllm: also the names that dashboards of vLLM use.
std::string metrics_text(const EngineStats& stats, const http::ServerStats& http, const ModelCard& card, bool vllm);

}  // namespace k3::server

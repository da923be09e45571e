// Purpose:  what an engine decides before it is made: options that were left open, the size of the pool, what its cache is of.
// Shapes:   none.
// Units:    bytes, tokens.
// Memory:   none.
// Threads:  pure, but for what the machine has free.
// Errors:   invalid_argument, unsupported, not_found for options that cannot be; exhausted, with the arithmetic, for a pool that
//           does not fit.
// Source:   serving.md 2, 3.1.
#pragma once

#include <string>

#include "k3/cache/shape.h"
#include "k3/engine/engine.h"

namespace k3 {

Status check_engine_options(const Model& model, EngineOptions& options);
// What a plan of a GPU has to know of the pool, before there is a model.
Result<GpuPoolRequest> gpu_pool_request(const Config& config, const EngineOptions& options);
// options.pool_bytes; on a GPU only what was asked for, the rest by size_gpu_pool.
Status size_pool(const Model& model, const cache::CacheShape& shape, EngineOptions& options);
// Once weights and the scratch of steps are there.
Status size_gpu_pool(const Model& model, const cache::CacheShape& shape, int64_t scratch_bytes, EngineOptions& options);
// Changes with everything that the content of a page depends on.
std::string engine_identity(const Model& model, const EngineOptions& options);

}  // namespace k3

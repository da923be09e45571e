// Purpose:  what the cost model knows of one accelerator, and the constants that turn its peaks into times.
// Shapes:   none.
// Units:    bytes, bytes/s in one direction, FLOP/s dense (a multiply-add is two), seconds, accelerators.
// Memory:   plain values.
// Threads:  immutable by use.
// Errors:   none here; plan/cost/validate.h refuses zero, negative and non-finite cells.
// Source:   cost-model.md 2 (the seven rows of kSpecHardware), 8.3 (scan_*), 8.4 and 13a (Efficiency).
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace k3::plan {

struct Hardware {
  std::string name;
  double memory_bytes = 0;
  double hbm_bytes_per_second = 0;
  double bf16_flops_per_second = 0;
  double fp8_flops_per_second = 0;
  double scale_up_bytes_per_second = 0;  // NVLink and the like, within a domain
  int64_t domain_gpus = 0;               // accelerators of one scale-up domain
  double network_bytes_per_second = 0;   // between domains, for one accelerator
  double host_bytes_per_second = 0;
  double scan_lanes = 0;               // KDA scans that run side by side
  double scan_chunk_seconds = 0;       // tau: one 16-token chunk of the longest chain
  double scan_head_token_seconds = 0;  // kappa: the parallel part, for each head and token
  bool w4a8 = false;                   // multiplies MXFP4 weights at the FP8 rate; false: at the BF16 rate
};

// Shares of a peak that are reached, and latencies. Each is a cell of share/hardware and may be overridden.
struct Efficiency {
  double weight_bytes = 0.80;       // eta_mem: weights streamed from HBM
  double state_bytes = 0.75;        // eta_state: KDA states
  double attention_bytes = 0.70;    // eta_attn_mem: latents; also AttnRes and elementwise traffic
  double gemm_flops = 0.60;         // eta_gemm, of a prefill
  double decode_gemm_flops = 0.33;  // eta_gemm of a decode step's few rows; fitted to the verify speed-ups of 9.3
  double routed_flops = 0.27;       // eta_moe
  double attention_flops = 0.55;    // eta_attn
  double link = 0.75;               // of every link's rate, for volume
  double gemm_loss_per_log2_tp = 0.07;
  double sliced_routed = 0.70;       // factor of routed_flops where experts are sliced by TP
  double collective_overlap = 0.40;  // share of a prefill's communication that is hidden
  double hop_overlap = 0.91;         // share of a prefill's pipeline hops that is hidden
  double kernels_per_layer = 19;
  double verify_kernels_per_layer = 5;  // more of them when several tokens of a request are verified
  double kernel_seconds = 1.83e-6;
  double fixed_prefill_tokens = 65536;  // a prefill's kernel chain is paid once for so many tokens
  double collective_seconds = 8e-6;     // t_ar: small collective of up to 8 ranks in a domain
  double collective_slope = 0.75;       // growth of t_ar for each doubling of ranks beyond 8
  double network_seconds = 30e-6;       // t_net: small collective or message between domains
  double host_step_seconds = 0.15e-3;
  double draft_seconds = 0.4e-3;  // of a speculating step; fitted to the TP8 and TP16 DSpark rows of 12
  double request_seconds = 25e-3;
  double elementwise_passes = 24;  // HBM passes of width H for each layer and prefill token ...
  double residual_passes = 8;      // ... of which these are replicated over tp unless sequence-sharded
  double scan_chunk_tokens = 16;
  double memory_reserve = 0.10;  // share of memory left alone
  double extra_bytes = 3.5e9;    // workspaces, graphs, communication buffers
};

// The rows of cost-model.md 2.
inline const std::array<Hardware, 7> kSpecHardware = {{
    {"H100-SXM", 80.0 * (1LL << 30), 3.35e12, 989e12, 1978e12, 450e9, 8, 50e9, 55e9, 132, 2.4e-6, 4.1e-10, false},
    {"H200-SXM", 141e9, 4.8e12, 989e12, 1978e12, 450e9, 8, 50e9, 55e9, 132, 2.4e-6, 4.1e-10, false},
    {"B200-SXM", 180.0 * (1LL << 30), 7.7e12, 2250e12, 4500e12, 900e9, 8, 100e9, 55e9, 148, 1.48e-6, 3.2e-10, true},
    {"B300-SXM", 275040.0 * (1LL << 20), 7.75e12, 2250e12, 4500e12, 900e9, 8, 100e9, 110e9, 148, 1.48e-6, 3.2e-10, true},
    {"GB200-NVL72", 189471.0 * (1LL << 20), 8.0e12, 2500e12, 5000e12, 900e9, 72, 50e9, 180e9, 156, 1.48e-6, 3.2e-10, true},
    {"GB300-NVL72", 284208.0 * (1LL << 20), 8.0e12, 2500e12, 5000e12, 900e9, 72, 100e9, 180e9, 156, 1.48e-6, 3.2e-10, true},
    {"MI355X", 288e9, 8.0e12, 2500e12, 5000e12, 538e9, 8, 50e9, 55e9, 256, 2.4e-6, 4.1e-10, true},
}};

}  // namespace k3::plan

"""The metric names poascope reads: one entry a quantity, with every name that engines and versions give it.

Where two names of one quantity are exported side by side, the first of the list wins and the other is not added to it.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Quantity:
    """`aliases`: newest name first. `worker_label`: how the family spells a worker in `worker_id`, None where it has none."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    aliases: tuple[str, ...]
    worker_label: Literal["decimal", "hex"] | None = None


QUANTITIES = (
    Quantity("frontend_ttft_s", "histogram", ("dynamo_frontend_time_to_first_token_seconds",)),
    Quantity("frontend_itl_s", "histogram", ("dynamo_frontend_inter_token_latency_seconds",)),
    Quantity("frontend_e2e_s", "histogram", ("dynamo_frontend_request_duration_seconds",)),
    Quantity("frontend_input_tokens", "histogram", ("dynamo_frontend_input_sequence_tokens",)),
    Quantity("frontend_cached_tokens", "histogram", ("dynamo_frontend_cached_tokens",)),
    Quantity("frontend_started", "counter", ("dynamo_frontend_requests_started_total",)),
    Quantity("frontend_requests", "counter", ("dynamo_frontend_requests_total",)),
    Quantity("frontend_output_tokens", "counter", ("dynamo_frontend_output_tokens_total",)),
    Quantity("frontend_inflight", "gauge", ("dynamo_frontend_active_requests", "dynamo_frontend_inflight_requests")),
    Quantity("frontend_queued", "gauge", ("dynamo_frontend_queued_requests",)),
    Quantity("router_pending", "gauge", ("dynamo_frontend_router_queue_pending_requests",)),
    Quantity("router_overhead_ms", "histogram", ("dynamo_router_overhead_total_ms",)),
    Quantity("router_hit_ratio", "histogram", ("dynamo_component_router_kv_hit_rate",)),
    Quantity("block_tokens", "gauge", ("dynamo_frontend_model_kv_cache_block_size",)),
    Quantity("worker_decode_blocks", "gauge", ("dynamo_frontend_worker_active_decode_blocks",), "decimal"),
    Quantity("worker_prefill_tokens", "gauge", ("dynamo_frontend_worker_active_prefill_tokens",), "decimal"),
    Quantity("component_inflight", "gauge", ("dynamo_component_inflight_requests",), "hex"),
    Quantity("component_requests", "counter", ("dynamo_component_requests_total",), "hex"),
    Quantity("component_total_blocks", "gauge", ("dynamo_component_total_blocks", "dynamo_component_kvstats_total_blocks"), "hex"),
    Quantity(
        "component_cache_ratio", "gauge",
        ("dynamo_component_gpu_cache_usage_percent", "dynamo_component_kvstats_gpu_cache_usage_percent"), "hex",
    ),
    Quantity(
        "engine_cache_ratio", "gauge",
        ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage", "trtllm_kv_cache_utilization"),
    ),
    Quantity("engine_running", "gauge", ("vllm:num_requests_running", "sglang:num_running_reqs")),
    Quantity("engine_waiting", "gauge", ("vllm:num_requests_waiting", "sglang:num_queue_reqs")),
    Quantity(
        "engine_itl_s", "histogram",
        ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", "sglang:inter_token_latency_seconds"),
    ),
    Quantity("engine_ttft_s", "histogram", ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds")),
)  # fmt: skip

BY_ALIAS = {alias: quantity for quantity in QUANTITIES for alias in quantity.aliases}

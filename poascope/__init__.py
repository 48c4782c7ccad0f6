"""poascope: live price of anarchy, TTFT, ITL and regimes of disaggregated LLM inference on NVIDIA Dynamo."""

__version__ = "0.1.0"

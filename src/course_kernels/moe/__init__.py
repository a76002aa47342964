"""The experts of a mixture of experts: a feed-forward layer from routed tokens to their results."""

from course_kernels.kernels.codes import Activation, Function
from course_kernels.moe.activations import ACTIVATIONS
from course_kernels.moe.api import moe_feed_forward
from course_kernels.moe.experts import Experts
from course_kernels.moe.lora import Lora
from course_kernels.moe.routing import Routing

__all__ = ["ACTIVATIONS", "Activation", "Experts", "Function", "Lora", "Routing", "moe_feed_forward"]

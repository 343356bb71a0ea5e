"""fla's kernels of the gated delta rule step by step, each alone: a fault is told by the name of the kernel that has it."""

from __future__ import annotations

import math

from harness.kernels import delta_offers as offers
from harness.kernels import delta_steps as steps
from harness.kernels import fla_parts as parts
from harness.kernels.delta_offers import Library, Offer, kernel_of
from harness.kernels.kernel import Kernel

_FLA = Library("fla", parts.fla, math.log(2), parts.missing)


def kernels() -> tuple[Kernel, ...]:
    return tuple(kernel_of(_FLA, offer) for offer in _OFFERS)


_OFFERS = (
    Offer(steps.CUMSUM, "ops.utils", (), offers.cumsum),
    Offer(steps.TOTAL, "ops.utils", (), offers.total),
    Offer(steps.KKT, "ops.common.chunk_scaled_dot_kkt", ("chunk_scaled_dot_kkt_fwd_kernel",), offers.kkt),
    Offer(steps.TRIL, "ops.utils", (), offers.tril),
    Offer(steps.WY, "ops.gated_delta_rule.wy_fast", ("recompute_w_u_fwd_kernel",), offers.wy),
    Offer(steps.INTRA, "ops.gated_delta_rule.chunk_fwd", ("chunk_gated_delta_rule_fwd_kkt_solve_kernel",), offers.intra),
    Offer(steps.WY_BACKWARD, "ops.gated_delta_rule.wy_fast", ("prepare_wy_repr_bwd_kernel",), offers.wy_backward),
    Offer(steps.H, "ops.common.chunk_delta_h", ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64",), offers.h, True),
    Offer(steps.DHU, "ops.common.chunk_delta_h", ("chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64",), offers.dhu, True),
    Offer(steps.O, "ops.common.chunk_o", ("chunk_fwd_kernel_o",), offers.o, True),
    Offer(steps.LOCAL, "ops.common.chunk_o", ("chunk_bwd_kernel_dv_local",), offers.local),
    Offer(steps.DV, "ops.common.chunk_o", ("chunk_bwd_kernel_dv",), offers.dv, True),
    Offer(steps.DQKWG, "ops.common.chunk_o", ("chunk_bwd_kernel_dqkwg",), offers.dqkwg, True),
)

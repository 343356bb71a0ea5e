import numpy as np

from harness.packed_experts import packed
from harness.tensors import Tensor


def tensor(values: np.ndarray) -> Tensor:
    return Tensor("F32", values.shape, np.frombuffer(values.astype("<f4").tobytes(), dtype=np.uint8))


def test_experts_are_packed_gate_above_up_expert_by_expert() -> None:
    rng = np.random.default_rng(0)
    at = "model.layers.0.mlp.experts"
    parts = {(n, p): rng.normal(size=(4, 3) if p == "down" else (3, 4)) for n in range(2) for p in ("gate", "up", "down")}
    found = packed({f"{at}.{n}.{p}_proj.weight": tensor(v) for (n, p), v in parts.items()} | {"norm.weight": tensor(np.ones(3))})
    assert set(found) == {f"{at}.gate_up_proj", f"{at}.down_proj", "norm.weight"}
    expected = np.stack([np.concatenate([parts[n, "gate"], parts[n, "up"]]) for n in range(2)]).astype("<f4")
    assert found[f"{at}.gate_up_proj"].shape == (2, 6, 4)
    assert np.array_equal(found[f"{at}.gate_up_proj"].values(), expected)
    assert np.array_equal(found[f"{at}.down_proj"].values(), np.stack([parts[n, "down"] for n in range(2)]).astype("<f4"))


def test_a_model_without_experts_and_an_incomplete_set_stay_as_they_are() -> None:
    plain = {"a.weight": tensor(np.ones((2, 2)))}
    assert packed(plain) == plain
    partial = {"m.experts.0.gate_proj.weight": tensor(np.ones((2, 2))), "m.experts.1.up_proj.weight": tensor(np.ones((2, 2)))}
    assert packed(partial) == partial

"""Whether the installed packages fit one another, this chip, and the stacks that matrix.yaml declares (FAQ Q4, Q6, Q11, Q12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.doctor_facts import Finding, HostFacts, Package, Severity, Sureness, unless_used
from harness.evidence import meets
from harness.model import Hardware, Stack

# Packages that NPU work is made of: what is held against the declared stacks, and whose pins are held against what is installed.
GROUP = (
    "ms-swift", "torch", "torch-npu", "transformers", "accelerate", "peft", "deepspeed", "vllm", "vllm-ascend", "mindspeed",
    "megatron-core", "mcore-bridge", "triton-ascend", "flash-linear-attention",
)  # fmt: skip
# What goes wrong with each beside an NPU.
CUDA_ONLY: Mapping[str, str] = {
    "flash-attn": "--attn_impl flash_attn then chooses CUDA kernels",
    "transformer-engine": "Megatron then chooses its CUDA layers instead of MindSpeed's",
    "apex": "Megatron then chooses its CUDA optimizers",
    "xformers": "it needs CUDA",
}
# Of no use on an NPU, and harmless until a command asks for them.
UNSUPPORTED: Mapping[str, str] = {
    "bitsandbytes": "quantised training isn't supported on NPUs: losses of 0 and nan were seen",
    "liger-kernel": "--use_liger_kernel isn't supported on NPUs",
}
_OF_DEVICE = {"A2": Hardware.A2, "A3": Hardware.A3, "A5": Hardware.A5}
_PAIR = "pip uninstall -y torch torch_npu; pip install torch==2.9.0 torch_npu==2.9.0 decorator"
_B, _D, _N = Severity.BLOCKS, Severity.DEGRADES, Severity.NOTE
_VLLM: Mapping[str, tuple[object, ...]] = {"engine": ("vllm",)}


def check_torch(facts: HostFacts) -> Iterator[Finding]:
    if facts.packages is None:
        return
    torch, npu = facts.package("torch"), facts.package("torch-npu")
    if facts.lacks("torch") or facts.lacks("torch-npu"):
        lacks = "torch_npu is" if torch else "torch and torch_npu are" if npu is None else "torch is"
        why = "without the pair PyTorch has no device `npu`"
        fix = "pip install torch==2.9.0 torch_npu==2.9.0 decorator"
        yield unless_used(facts, Finding("torch_npu.missing", f"{lacks} not installed", why, fix, Sureness.CERTAIN, _B, "Q6", {}))
    elif npu and npu.local.startswith("sim"):
        why = "the simulated NPU of this harness must never stand beside real ones"
        what = f"torch_npu {npu.version} is the simulated NPU's stand-in"
        yield Finding("torch_npu.simulated", what, why, _PAIR, Sureness.CERTAIN, _B, "Q6", {})
    elif torch and npu and torch.release[:3] != npu.release[:3]:
        minor = torch.release[:2] == npu.release[:2]
        why = "seen then: import torch_npu fails, no device, operators not registered, undefined symbols"
        sure, degree = (Sureness.LIKELY, _D) if minor else (Sureness.CERTAIN, _B)
        what = f"torch {torch.version} and torch_npu {npu.version} are not a pair"
        yield unless_used(facts, Finding("torch.pair", what, why, _PAIR, sure, degree, "Q6", None if minor else {}))
    if torch and (torch.local.startswith("cu") or any(name.startswith("nvidia-cuda-runtime") for name in facts.packages)):
        why = "a CUDA build brings gigabytes that NPUs don't use, and code that asks torch.version.cuda takes its CUDA path"
        fix = f"pip install torch=={'.'.join(map(str, torch.release))} --index-url https://download.pytorch.org/whl/cpu"
        what = f"torch {torch.version} is a CUDA build"
        yield unless_used(facts, Finding("torch.cuda", what, why, fix, Sureness.LIKELY, _D if facts.traces else _N, "Q12"))


def check_wheels(facts: HostFacts) -> Iterator[Finding]:
    """Wheels for another machine, and CUDA-only packages on an NPU host."""
    packages = facts.packages or {}
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}.get(facts.architecture, "")
    for name in GROUP:
        package = packages.get(name)
        if other and package and package.tags and all(tag.endswith(f"_{other}") for tag in package.tags):
            why = "its libraries can't be loaded here"
            fix = f"pip install --force-reinstall --no-deps {name}=={package.version}"
            what = f"{name} {package.version} is a wheel for {other}, this machine is {facts.architecture}"
            cells = _VLLM if name.startswith("vllm") else {} if name.startswith("torch") else None
            found = Finding("wheel.architecture", what, why, fix, Sureness.CERTAIN, _B, "Q12", cells)
            yield unless_used(facts, found) if name.startswith("torch") else found
    for id, table, degree in (("package.cuda_only", CUDA_ONLY, _D), ("package.unsupported", UNSUPPORTED, _N)):
        cuda = [name for name in table if name in packages] if facts.traces else []
        if cuda:
            why = "; ".join(f"{name}: {table[name]}" for name in cuda)
            what = f"{'CUDA-only' if degree is _D else 'unsupported'} packages: {', '.join(cuda)}"
            yield Finding(id, what, why, f"pip uninstall -y {' '.join(cuda)}", Sureness.LIKELY, degree, "暂不支持或未完全验证")
    if "triton" in packages and "triton-ascend" in packages:
        why = "both install the module `triton`: the one that came last wins, and files of the other remain"
        fix = f"pip uninstall -y triton triton-ascend; pip install triton-ascend=={packages['triton-ascend'].version}"
        yield Finding("triton.two", "triton and triton-ascend are both installed", why, fix, Sureness.LIKELY, _D, "Q12")


def check_vllm(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q4, Q11, Q12: whether vLLM can be an engine here; where it can't, transformers can."""
    if facts.packages is None:
        return
    yield from _pair(facts)
    yield from _device_type(facts)
    sglang = facts.package("sglang")
    if sglang and facts.traces:
        why = "the document has no verified use of sglang on NPUs"
        fix = "use --infer_backend vllm (vllm-ascend) or transformers"
        what = f"sglang {sglang.version} is installed, but isn't supported on NPUs"
        yield Finding("sglang.installed", what, why, fix, Sureness.CERTAIN, _N, "Q4")


def _pair(facts: HostFacts) -> Iterator[Finding]:
    vllm, plugin = facts.package("vllm"), facts.package("vllm-ascend")
    both = "pip install vllm==0.18.0 && pip install vllm-ascend==0.18.0"
    if vllm and plugin and vllm.release[:2] != plugin.release[:2]:
        why = "vllm-ascend patches one release of vLLM: another fails at import, or serves wrongly"
        base = ".".join(map(str, plugin.release[:3]))
        fix = f"pip install vllm=={base} && pip install vllm-ascend=={plugin.version}"
        what = f"vllm {vllm.version} and vllm-ascend {plugin.version} are not a pair"
        yield Finding("vllm.pair", what, why, fix, Sureness.CERTAIN, _D, "Q4", _VLLM)
    elif facts.lacks("vllm") != facts.lacks("vllm-ascend") and facts.traces:
        has, lacks = ("vllm", "vllm-ascend") if facts.lacks("vllm-ascend") else ("vllm-ascend", "vllm")
        why = "vLLM runs on an NPU only with its plugin, of the same release; `--infer_backend transformers` works without both"
        what = f"{has} is installed without {lacks}: no vLLM engine here, choose transformers meanwhile"
        yield Finding("vllm.half", what, why, both, Sureness.CERTAIN, _D, "Q11", _VLLM)
    elif facts.lacks("vllm"):
        why = "rollouts (GRPO, PPO) and `--infer_backend vllm` need it; `--infer_backend transformers` does not"
        what = "no vllm-ascend: transformers is the only engine here"
        yield Finding("vllm.none", what, why, both, Sureness.CERTAIN, _N, "Q11", _VLLM)
    if plugin and vllm and vllm.local.startswith("cu"):
        why = "vLLM then looks for CUDA before its plugin is asked"
        fix = f"VLLM_TARGET_DEVICE=empty pip install --no-binary vllm vllm=={'.'.join(map(str, vllm.release))}"
        yield Finding("vllm.cuda", f"vllm {vllm.version} is a CUDA build", why, fix, Sureness.LIKELY, _D, "Q12")


def _device_type(facts: HostFacts) -> Iterator[Finding]:
    said, series = facts.vllm_ascend_device, facts.series
    if not said or series is None:
        return
    built_for = device_of(said)
    if built_for is not series:
        why = "it ends with: Current device type ... does not match the installed version's device type"
        plugin = facts.package("vllm-ascend")
        version = plugin.version if plugin else "0.18.0"
        fix = f"install the {str(series).upper()} build: pip install --force-reinstall --no-deps vllm-ascend=={version}"
        fix += " from the wheel or image for this chip"
        what = f"vllm-ascend is built for {said}, these chips are {str(series).upper()}"
        known = built_for is not None or said.lower().strip("_").removeprefix("ascend").startswith("310")
        sure, cells = (Sureness.CERTAIN, _VLLM) if known else (Sureness.POSSIBLE, None)
        yield Finding("vllm_ascend.device", what, why, fix, sure, _D, "Q12", cells)


def device_of(said: str) -> Hardware | None:
    """The target hardware that a build names, by device type (A2, A3, A5) or chip (ascend910b1, Ascend910_9391)."""
    if said.upper() in _OF_DEVICE:
        return _OF_DEVICE[said.upper()]
    chip = said.lower().removeprefix("ascend")
    for start, hardware in (
        ("910b", Hardware.A2),
        ("910_93", Hardware.A3),
        ("910c", Hardware.A3),
        ("910_95", Hardware.A5),
        ("950", Hardware.A5),
    ):
        if chip.startswith(start):
            return hardware
    return None


def check_pins(facts: HostFacts) -> Iterator[Finding]:
    """What a package of the group says it needs, against what is installed of the group."""
    packages = facts.packages or {}
    for name in GROUP:
        package = packages.get(name)
        for needed, specifier, found in _unmet(package, packages) if package is not None else ():
            why = "it was built and tested against another version: look here first when it fails to import or to load"
            what = f"{name} asks for {needed}{specifier}, found {found}"
            fix = f"pip install '{needed}{specifier}'"
            # vllm pins the torch of its CUDA build; its plugin, installed after it, brings the right one.
            degree = _D if facts.traces and name != "vllm" else _N
            yield Finding("pin.unmet", what, why, fix, Sureness.LIKELY, degree, "Q6")


def _unmet(package: Package, packages: Mapping[str, Package]) -> Iterator[tuple[str, str, str]]:
    for line in package.requires:
        try:
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        except (InvalidRequirement, ValueError):
            continue  # a package's own spelling; pip tells its user
        needed = canonicalize_name(requirement.name)
        found = packages.get(needed)
        if applies and found and needed in GROUP and not requirement.specifier.contains(found.version, prereleases=True):
            yield needed, str(requirement.specifier), found.version


def check_swift(facts: HostFacts) -> Iterator[Finding]:
    if facts.packages is None:
        return
    if facts.lacks("ms-swift"):
        why = "it is what the matrix runs"
        yield Finding(
            "swift.missing", "ms-swift is not installed", why, "pip install ms-swift -U", Sureness.CERTAIN, _B, "本地环境安装", {}
        )
    elif facts.swift_patches is False:
        why = "it then runs transformers' own layers: operators that NPUs lack, other speed, other losses"
        what = "this ms-swift has no NPU model patches (swift/model/npu_patch)"
        yield Finding("swift.no_patches", what, why, "pip install -U 'ms-swift>=4.6'", Sureness.CERTAIN, _D, "Q3")
    if facts.foreign_swift:
        why = "the packages told here are that Python's, since it runs the cells; contract tests and the doctor's probe use this one"
        what = f"`swift` on PATH belongs to another Python: {facts.foreign_swift}"
        yield Finding(
            "swift.foreign",
            what,
            why,
            "activate the environment that holds ms-swift, and run the doctor there",
            Sureness.CERTAIN,
            _D,
            "本地环境安装",
        )


def check_stacks(facts: HostFacts, stacks: Mapping[str, Stack]) -> Iterator[Finding]:
    """Evidence under no declared stack can't be `verified`, so the nearest one is told with what it lacks."""
    if facts.packages is None or not facts.traces:
        return
    versions = {**{name: p.version for name, p in facts.packages.items()}, "python": facts.python, "cann": facts.cann.version or ""}
    lacking = {key: unmet(stack, versions) for key, stack in stacks.items() if stack.requires}
    if not lacking or not all(lacking.values()):
        return
    # The one that most of is met, not the one that asks least.
    nearest = min(lacking, key=lambda key: (len(lacking[key]) / len(stacks[key].requires), len(lacking[key])))
    why = "what runs here counts as run under another stack: its marks are `stale`, never `verified`"
    what = f"no stack of matrix.yaml is met; nearest {nearest} lacks {', '.join(lacking[nearest])}"
    fix = "install these versions as one set, or declare this host's under `stacks:` with its document"
    yield Finding("stack.undeclared", what, why, fix, Sureness.CERTAIN, _D, f"stacks: {nearest}")


def unmet(stack: Stack, versions: Mapping[str, str]) -> tuple[str, ...]:
    """What of `stack` these versions don't meet: `cann==9.0.0 (found 8.5.1)`."""
    known = {canonicalize_name(name): version for name, version in versions.items() if version}
    found = ((name, spec, known.get(canonicalize_name(name))) for name, spec in stack.requires.items())
    return tuple(f"{name}{spec} (found {version or 'none'})" for name, spec, version in found if not meets(version, spec))

"""Whether this host shows its NPUs: device files, mounts, driver, npu-smi, health, CANN, and a tensor on npu:0 (FAQ Q1, Q5, Q9, Q10)."""

from __future__ import annotations

from collections.abc import Iterator

from harness.doctor_facts import Finding, HostFacts, Place, Severity, Sureness, unless_used
from harness.model import Hardware

MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
# What a container needs of its host, besides the device files, as the document's `docker run` mounts it.
MOUNTS = (
    "/usr/local/Ascend/driver", "/usr/local/Ascend/firmware", "/usr/local/sbin/npu-smi", "/etc/ascend_install.info",
)  # fmt: skip
_KERNELS = {Hardware.A2: ("ascend910b",), Hardware.A3: ("ascend910_93",), Hardware.A5: ("ascend910_95", "ascend950")}
_B, _D, _N = Severity.BLOCKS, Severity.DEGRADES, Severity.NOTE
_SET_ENV = "/usr/local/Ascend/ascend-toolkit/set_env.sh"


def check_devices(facts: HostFacts) -> Iterator[Finding]:
    paths = {file.path for file in facts.device_files}
    cards = sorted(path for path in paths if path.removeprefix("/dev/davinci").isdigit())
    lacking = [path for path in MANAGERS if path not in paths]
    where = "docker run" if facts.place is Place.CONTAINER else "the driver"
    if not cards:
        fix = "docker run --device=/dev/davinci0 ... (one for each NPU of `ls /dev/davinci*` on the host)"
        fix = (
            fix if facts.place is Place.CONTAINER else "install the NPU driver and firmware, then reboot; `ls /dev/davinci*` lists the NPUs"
        )
        why = "programs reach an NPU through its device file"
        yield unless_used(
            facts, Finding("device.none", "no NPU device file /dev/davinci0, 1, ...", why, fix, Sureness.CERTAIN, _B, "Q10", {})
        )
    elif lacking:
        fix = " ".join(f"--device={path}" for path in lacking)
        fix = f"docker run {fix}" if facts.place is Place.CONTAINER else f"reinstall the NPU driver: it makes {' '.join(lacking)}"
        why = "the runtime opens them besides the NPU's own file; without them dcmi and CANN find no device"
        what = f"{where} gave {len(cards)} NPU device files but not {', '.join(lacking)}"
        yield unless_used(facts, Finding("device.manager_missing", what, why, fix, Sureness.CERTAIN, _B, "Q10", {}))
    closed = [file.path for file in facts.device_files if not file.usable]
    if closed:
        why = "device files belong to the group HwHiAiUser, mode 0660: others get `Permission denied` or see no device"
        what = f"this user may not open {', '.join(closed[:3])}" + (f" and {len(closed) - 3} more" if len(closed) > 3 else "")
        fix = "sudo usermod -aG HwHiAiUser $USER, then log in again (in a container: run as root, or --group-add)"
        yield unless_used(facts, Finding("device.permission", what, why, fix, Sureness.CERTAIN, _B, "Q10", {}))


def check_mounts(facts: HostFacts) -> Iterator[Finding]:
    missing = [path for path in MOUNTS if facts.mounted.get(path) is False and not (path.endswith("npu-smi") and facts.npu_smi)]
    if facts.place is Place.CONTAINER and missing and (facts.traces or facts.device_files):
        why = "in a container the driver, its firmware and npu-smi are the host's, mounted"
        fix = "docker run " + " ".join(f"-v {path}:{path}:ro" for path in missing)
        degree = _B if "/usr/local/Ascend/driver" in missing else _D
        found = Finding("mount.missing", f"not mounted: {', '.join(missing)}", why, fix, Sureness.CERTAIN, degree, "Q10")
        yield unless_used(facts, found)
    if not facts.npu_smi:
        why = "npu-smi lists the NPUs with health and processes; nothing can be checked or leased without it"
        fix = "install the NPU driver (it brings npu-smi)"
        if facts.place is Place.CONTAINER:
            fix = "docker run -v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi:ro -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro"
        yield unless_used(
            facts, Finding("npu_smi.missing", "no npu-smi on PATH or in /usr/local/sbin", why, fix, Sureness.CERTAIN, _B, "Q10")
        )
    elif not facts.machine.npus:
        said = facts.machine.error or "it lists no NPU"
        why = "then the driver or the mounts are broken, whatever is installed above them"
        fix = (
            "run `npu-smi info` on the host itself: if it fails there, mend the driver; if not, compare the container's mounts and devices"
        )
        yield unless_used(facts, Finding("npu_smi.fails", f"npu-smi info lists no NPU: {said}", why, fix, Sureness.CERTAIN, _B, "Q10", {}))


def check_health(facts: HostFacts) -> Iterator[Finding]:
    npus = facts.machine.npus
    sick = [npu for npu in npus if npu.health is not None and not npu.healthy]
    if sick:
        names = ", ".join(f"NPU {npu.npu_id}{f' chip {npu.chip}' if npu.chip else ''} {npu.health}" for npu in sick)
        why = "HCCL waits for a sick NPU until it times out; its own jobs fail with heartbeat lost or 507xxx"
        fix = f"npu-smi info -t health -i {sick[0].npu_id}; reset or reboot it, or leave it out of ASCEND_RT_VISIBLE_DEVICES"
        degree = _B if len(sick) == len(npus) else _D
        what = f"npu-smi reports {len(sick)} of {len(npus)} NPUs as not healthy: {names}"
        yield Finding("health.sick", what, why, fix, Sureness.CERTAIN, degree, "Q9", {} if degree is _B else None)
    unsupported = sorted({str(npu.name) for npu in npus if npu.hardware is None and npu.series})
    if unsupported:
        why = "ms-swift trains on Atlas A2 and A3 training products and the 950 series"
        fix = "use another host; 910B1-910B4 are A2, Ascend910 with two dies an NPU is A3, Ascend950* is the 950 series"
        what = f"chips that ms-swift doesn't support: {', '.join(unsupported)}"
        yield Finding("chip.unsupported", what, why, fix, Sureness.CERTAIN, _B, "硬件配套和支持的操作系统", {})


def check_probe(facts: HostFacts) -> Iterator[Finding]:
    """FAQ Q1: an NPU that is listed, and still can't be used."""
    if facts.probe is None or facts.probe.made_a_tensor:
        return
    fix = f"source {facts.cann.set_env or _SET_ENV}; then compare CANN, torch and torch_npu with the document's versions"
    why = "is_torch_npu_available() is False, or device_count() is 0: training would run on the CPU or end at once"
    what = f"no NPU can be used: {facts.probe.said}"
    yield Finding("npu.unusable", what, why, fix, Sureness.CERTAIN, _B, "Q1", {})


def check_cann(facts: HostFacts) -> Iterator[Finding]:
    cann = facts.cann
    if cann.home is None and cann.set_env is None:
        why = "torch_npu needs CANN's libraries (libascendcl, libhccl) and operator kernels"
        fix = "install CANN >= 8.5.1: toolkit and the kernels of this chip; or use quay.io/ascend/ms-swift, which has them"
        yield unless_used(
            facts,
            Finding("cann.missing", "CANN isn't installed under /usr/local/Ascend", why, fix, Sureness.CERTAIN, _B, "支持范围速览", {}),
        )
        return
    home = facts.variable("ASCEND_HOME_PATH") or facts.variable("ASCEND_TOOLKIT_HOME")
    script = cann.set_env or _SET_ENV
    if not home or not facts.libraries:
        lacks = "ASCEND_HOME_PATH isn't set" if not home else "LD_LIBRARY_PATH leads to no libascendcl.so"
        why = "then is_torch_npu_available() is False, device_count() is 0, or libhccl.so can't be opened"
        what = f"CANN is installed but not sourced: {lacks}"
        yield unless_used(facts, Finding("cann.not_sourced", what, why, f"source {script}", Sureness.CERTAIN, _B, "Q5", {}))
    if cann.architecture and cann.architecture != facts.architecture:
        why = "libraries of another architecture can't be loaded"
        fix = f"install the {facts.architecture} package of CANN"
        what = f"CANN is for {cann.architecture}, this machine is {facts.architecture}"
        yield unless_used(facts, Finding("cann.architecture", what, why, fix, Sureness.CERTAIN, _B, "Q6", {}))
    yield from _kernels(facts)


def _kernels(facts: HostFacts) -> Iterator[Finding]:
    """Binaries of another generation are silently of no use: the first operator then fails, not the import."""
    series = facts.series
    wanted = _KERNELS.get(series, ()) if series else ()
    have = facts.cann.kernels
    if wanted and have and not set(wanted) & set(have):
        why = "every operator then ends with `does not has any binary` or an opp_kernel error"
        fix = f"install the kernels (ops) package of CANN {facts.cann.version or ''} for {wanted[0]}".replace("  ", " ")
        what = f"CANN has operator kernels for {', '.join(have)}, but these chips ({series}) need {wanted[0]}"
        yield unless_used(facts, Finding("cann.kernels", what, why, fix, Sureness.LIKELY, _B, "Q12"))


def check_nnal(facts: HostFacts) -> Iterator[Finding]:
    cann, engine = facts.cann, facts.package("vllm-ascend") or facts.package("mindspeed")
    home = facts.variable("ATB_HOME_PATH")
    if cann.nnal_set_env and not home:
        why = "NNAL's ATB operators (libatb.so) are not found: vllm-ascend and MindSpeed fail when they load them"
        what = "NNAL is installed but not sourced: ATB_HOME_PATH isn't set"
        yield Finding("nnal.not_sourced", what, why, f"source {cann.nnal_set_env}", Sureness.LIKELY, _D, "Q5")
    elif engine is not None and not cann.nnal_set_env and not home and cann.home:
        why = "vllm-ascend and MindSpeed load libatb.so, which only NNAL has"
        fix = "install Ascend-cann-nnal of CANN's version, then source /usr/local/Ascend/nnal/atb/set_env.sh"
        yield Finding("nnal.missing", f"{engine.name} is installed, but NNAL isn't", why, fix, Sureness.LIKELY, _D, "Q5")
    torch = facts.package("torch")
    old_abi = home.rstrip("/").endswith("cxx_abi_0")
    if torch and old_abi and torch.release >= (2, 7):
        why = "ATB of the old C++ ABI lacks the symbols: undefined symbol: _ZN3atb..."
        fix = "unset ATB_HOME_PATH; source /usr/local/Ascend/nnal/atb/set_env.sh --cxx_abi=1"
        what = f"ATB_HOME_PATH is for C++ ABI 0, and torch {torch.version} is built with ABI 1"
        yield Finding("nnal.abi", what, why, fix, Sureness.LIKELY, _D, "Q12")

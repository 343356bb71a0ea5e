"""Streams and events: trivial here, but asked for in every way."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.on_device


def test_a_stream_is_current_within_its_context() -> None:
    outer, stream = torch.npu.current_stream(), torch.npu.Stream()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() == stream != outer
    assert torch.npu.current_stream() == outer == torch.npu.default_stream()


def test_no_stream_changes_nothing() -> None:
    with torch.npu.stream(None):
        assert torch.npu.current_stream() == torch.npu.default_stream()


def test_a_stream_belongs_to_its_device() -> None:
    stream = torch.npu.Stream(device="npu:1")
    assert stream.device == torch.device("npu:1")
    with torch.npu.stream(stream):
        assert torch.npu.current_stream("npu:1") == stream and torch.npu.current_device() == 1
    assert torch.npu.current_device() == 0


def test_streams_wait_for_one_another_and_for_events() -> None:
    one, two, event = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Event()
    with torch.npu.stream(one):
        x = torch.ones(2, device="npu") * 2
        event.record()
    two.wait_stream(one)
    two.wait_event(event)
    x.record_stream(two)
    one.synchronize()
    assert one.query() and event.query() and x.sum().item() == 4


def test_events_measure_time() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    torch.ones(64, 64, device="npu") @ torch.ones(64, 64, device="npu")
    end.record()
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000


def test_events_without_timing_measure_nothing() -> None:
    start, end = torch.npu.Event(), torch.npu.Event()
    start.record()
    end.record()
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(end)


def test_the_generic_accelerator_interface_finds_the_npu() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "npu"
    assert torch.accelerator.device_count() == 2 and torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(1)
    assert torch.npu.current_device() == 1
    torch.accelerator.synchronize()


def test_an_event_can_be_made_and_recorded_by_a_stream() -> None:
    event = torch.npu.current_stream().record_event()
    torch.npu.current_stream().wait_event(event)
    assert event.query()

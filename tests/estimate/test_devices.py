"""What is known of a device's speed: a calibration of it, or its data sheet and the H200's."""

from dataclasses import replace

import pytest

from laptime import hardware
from laptime.errors import CalibrationError
from laptime.estimate import device_speed
from laptime.estimate.calibration import Calibration
from laptime.estimate.device_speed import shipped, speed_of

FIGURES = {"title": "a CPU", "kind": "cpu", "memory_bandwidth_gbs": 20.0, "fp32": 0.5}


def of_a_cpu(name="this-cpu", time="10:00:00"):
    facts = {"type": "cpu", "host": "device", "date": "2026-11-16", "time": time, "figures": FIGURES}
    return Calibration(device=name, peaks={"float32": 5e11}, bandwidth=2e10, forests={}, facts=facts)


def test_an_h200_is_known_by_the_calibration_that_comes_with_laptime():
    found = speed_of(hardware.device("h200"))
    assert found.calibration is shipped("h200")
    assert (found.measured, found.hosted, found.shares) == (True, True, None)
    assert found.bandwidth == found.calibration.bandwidth


def test_a_gpu_without_a_calibration_is_known_by_its_data_sheet_and_the_h200s_times():
    v100 = hardware.device("v100-sxm2-16gb")
    found = speed_of(v100)
    assert found.calibration is shipped("h200")
    assert (found.measured, found.hosted) == (False, True)
    assert found.shares is not None
    assert found.shares.device is v100
    assert found.bandwidth == v100.memory_bandwidth < found.calibration.bandwidth


def test_a_cpu_without_a_calibration_is_known_by_its_data_sheet_and_hands_nothing_over():
    cpu = hardware.device("i7-3820")
    found = speed_of(cpu)
    assert (found.measured, found.hosted) == (False, False)
    assert found.bandwidth == cpu.memory_bandwidth


def test_the_users_own_calibration_comes_before_the_one_that_laptime_brings(calibrations):
    replace(shipped("h200"), bandwidth=1e12).save(calibrations / "h200.npz")
    found = speed_of(hardware.device("h200"))
    assert found.measured
    assert found.bandwidth == 1e12


def test_the_cpu_at_hand_is_the_one_that_was_calibrated_last(calibrations):
    of_a_cpu("that-cpu", "09:00:00").save(calibrations / "that-cpu.npz")
    of_a_cpu("this-cpu", "10:00:00").save(calibrations / "this-cpu.npz")
    here = device_speed.device("cpu")
    assert here.name == "this-cpu"
    assert speed_of(here).calibration.host_is_device
    assert not speed_of(here).hosted


def test_what_an_interrupted_calibration_left_behind_hides_no_other(calibrations):
    of_a_cpu().save(calibrations / "this-cpu.npz")
    (calibrations / ".this-cpu.npz.part.npz").write_bytes(b"PK\x03\x04")
    (calibrations / "rtx-2080.npz").write_bytes(b"of an earlier laptime")
    assert device_speed.device("cpu").name == "this-cpu"


def test_a_calibration_that_cannot_be_read_is_told_where_there_is_no_other(calibrations):
    (calibrations / "this-cpu.npz").write_bytes(b"")
    with pytest.raises(CalibrationError, match=r"this-cpu\.npz is no calibration"):
        device_speed.device("cpu")


def test_a_machine_that_was_never_calibrated_is_told_how():
    with pytest.raises(CalibrationError, match="laptime calibrate"):
        device_speed.device("cpu")

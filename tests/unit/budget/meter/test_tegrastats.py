from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgert.budget.meter.tegrastats import Tegrastats, parse_tegrastats, readings

HEAD = "RAM 534/3964MB (lfb 98x4MB) SWAP 5/1982MB (cached 1MB) "
NANO = (
    HEAD + "IRAM 0/252kB(lfb 252kB) CPU [16%@204,9%@204,0%@204,0%@204] EMC_FREQ 0%@204 GR3D_FREQ 0%@76 APE 25 PLL@34C "
    "CPU@36.5C PMIC@100C GPU@36C AO@39.5C thermal@36.25C POM_5V_IN 1022/1022 POM_5V_GPU 0/0 POM_5V_CPU 204/204"
)
TX2 = (
    HEAD + "CPU [1%@345,off,off,1%@345,0%@345,2%@345] EMC_FREQ 4%@1600 GR3D_FREQ 0%@624 APE 150 PLL@37.5C "
    "VDD_SYS_GPU 152/152 VDD_SYS_SOC 687/687 VDD_4V0_WIFI 0/0 VDD_IN 3056/3056 VDD_SYS_CPU 152/152 VDD_SYS_DDR 883/883"
)
AGX_XAVIER = (
    HEAD + "CPU [2%@1190,0%@1190,off,off] EMC_FREQ 0%@665 GR3D_FREQ 0%@318 APE 150 MTS fg 0% bg 0% AO@37.5C "
    "GPU@37.5C Tdiode@40C PMIC@100C CPU@37.5C GPU 0/0 CPU 311/311 SOC 932/932 CV 0/0 VDDRQ 621/621 SYS5V 1482/1482"
)
XAVIER_NX = (
    HEAD + "EMC_FREQ 10%@1600 GR3D_FREQ 62%@306 APE 150 MTS fg 0% bg 0% AO@41.5C GPU@43C PMIC@100C "
    "VDD_IN 4067/4067 VDD_CPU_GPU_CV 738/738 VDD_SOC 1353/1353"
)
ORIN_NX_5 = (
    HEAD + "CPU [6%@729,9%@729,5%@729,16%@729,off,off,off,off] EMC_FREQ 0%@2133 GR3D_FREQ 0%@611 VIC_FREQ 729 APE 174 "
    "CV0@45.812C CPU@47.937C tj@48.875C CV2@45.75C VDD_IN 5299mW/5299mW VDD_CPU_GPU_CV 773mW/773mW "
    "VDD_SOC 1424mW/1424mW"
)
AGX_ORIN_5 = (
    HEAD + "CPU [6%@729] EMC_FREQ 0%@2133 GR3D_FREQ 0%@114 GR3D2_FREQ 0%@114 CV0@-256C CPU@47C "
    "VDD_GPU_SOC 4788mW/4788mW VDD_CPU_CV 798mW/798mW VIN_SYS_5V0 3842mW/3842mW "
    "NC 0mW/0mW VDDQ_VDD2_1V8AO 707mW/707mW NC 0mW/0mW"
)
AGX_ORIN_6 = (
    HEAD + "CPU [6%@729] EMC_FREQ 1%@2133 GR3D_FREQ 0%@[305,305] NVENC off NVDEC off NVJPG off NVJPG1 off VIC off "
    "OFA off NVDLA0 off NVDLA1 off PVA0_FREQ off APE 174 cpu@53.062C soc2@48.25C gpu@47.812C tj@53.062C "
    "VDD_GPU_SOC 3205mW/3205mW VDD_CPU_CV 4405mW/4405mW VIN_SYS_5V0 4767mW/4767mW"
)
ORIN_NANO_6 = (
    "04-19-2026 01:31:10 RAM 519/7607MB (lfb 61x4MB) CPU [0%@1728,9%@1728] EMC_FREQ 0%@3199 GR3D_FREQ 0%@[1018] "
    "NVDEC off NVJPG off APE 200 cpu@48.906C gpu@49.593C tj@49.593C VDD_IN 5971mW/5971mW VDD_CPU_GPU_CV 1669mW/1669mW "
    "VDD_SOC 2308mW/2308mW"
)
AGX_ORIN_7 = (
    "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU [23%@2201,9%@2201] EMC_FREQ 3%@3199 "
    "GR3D_FREQ 12%@[1300,1300] NVENC0 off NVDLA0 off NVDLA1 off PVA0_FREQ off APE 174 cpu@52.968C/52.968C "
    "gpu@47.625C/47.625C VDD_GPU_SOC 5139mW/5139mW/5139mW VDD_CPU_CV 3268mW/3268mW/3268mW "
    "VIN_SYS_5V0 5500mW/5500mW/5600mW"
)
THOR = (
    "04-21-2026 15:50:52 RAM 105265/125772MB (lfb 34x4MB) CPU [0%@972,1%@972] EMC_FREQ 0%@2750 "
    "GR3D_FREQ @[314,314,314] NVENC0_FREQ @314 NVDEC0_FREQ @314 "
    "VIC off OFA_FREQ @315 PVA0_FREQ off APE 300 cpu@37.343C tj@38.875C "
    "soc012@37.468C VDD_GPU 1962mW/1962mW VDD_CPU_SOC_MSS 5887mW/5887mW VIN_SYS_5V0 5635mW/5635mW VIN 19780mW/19780mW"
)
LINES = {
    "nano": (NANO, 1.022, 0.0, (76.0,)),
    "tx2": (TX2, 3.056, 0.0, (624.0,)),
    "agx-xavier": (AGX_XAVIER, 3.346, 0.0, (318.0,)),
    "xavier-nx": (XAVIER_NX, 4.067, 62.0, (306.0,)),
    "orin-nx-5": (ORIN_NX_5, 5.299, 0.0, (611.0,)),
    "agx-orin-5": (AGX_ORIN_5, 9.428, 0.0, (114.0,)),
    "agx-orin-6": (AGX_ORIN_6, 12.377, 0.0, (305.0, 305.0)),
    "orin-nano-6": (ORIN_NANO_6, 5.971, 0.0, (1018.0,)),
    "agx-orin-7": (AGX_ORIN_7, 13.907, 12.0, (1300.0, 1300.0)),
    "thor": (THOR, 19.78, None, (314.0, 314.0, 314.0)),
}


@pytest.mark.parametrize("name", LINES)
def test_power_and_gpu_of_every_release(name: str) -> None:
    text, watts, load, mhz = LINES[name]
    line = parse_tegrastats(text)
    assert readings(line)["power"].value == pytest.approx(watts)
    assert (line.engines["GR3D"].load_percent, line.engines["GR3D"].mhz) == (load, mhz)
    assert line.ram_total_bytes is not None
    assert "IRAM" not in line.rails and "NC" not in line.rails


def test_cores_memory_and_zones() -> None:
    line = parse_tegrastats(ORIN_NX_5)
    assert [core and (core.load_percent, core.mhz) for core in line.cores][3:5] == [(16.0, 729.0), None]
    assert (line.ram_used_bytes, line.ram_largest_free_bytes, line.swap_used_bytes) == (534 << 20, 98 << 22, 5 << 20)
    assert line.temperatures_c["tj"] == 48.875
    assert line.engines["VIC"].mhz == (729.0,)
    assert parse_tegrastats(AGX_ORIN_5).temperatures_c["CV0"] is None


def test_blocks_that_are_off_dates_and_peaks() -> None:
    line = parse_tegrastats(AGX_ORIN_7)
    assert line.engines["NVDLA0"].mhz == line.engines["PVA0"].mhz == ()
    assert line.date == "07-25-2026 09:08:28"
    assert (line.rails["VIN_SYS_5V0"].peak_w, parse_tegrastats(THOR).rails["VIN"].peak_w) == (5.6, None)
    assert parse_tegrastats(THOR).engines["NVENC0"].mhz == (314.0,)


@given(st.text(max_size=200))
def test_what_is_no_line_says_nothing_and_raises_nothing(text: str) -> None:
    assert isinstance(parse_tegrastats(text), Tegrastats)


def test_an_empty_line_has_no_readings() -> None:
    assert readings(parse_tegrastats("")) == {}

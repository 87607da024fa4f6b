import pytest

from laptime.errors import AmbiguousDevice, HardwareError, UnknownDevice
from laptime.hardware import device, devices, gpu_in, link, price, raid0, storage


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100-sxm", "h100-sxm"),
        ("H100 SXM", "h100-sxm"),
        ("h100_sxm", "h100-sxm"),
        ("a100-sxm-80gb", "a100-sxm-80gb"),
        ("A100-80GB", "a100-sxm-80gb"),
        ("a100 80 GB", "a100-sxm-80gb"),
        ("v100", "v100-sxm2-16gb"),
        ("Tesla P100", "p100-pcie-16gb"),
        ("Titan X Pascal", "titan-x-pascal"),
        ("GTX Titan X", "titan-x-maxwell"),
        ("3090", "rtx-3090"),
        ("h200-sxm", "h200"),
        ("RTX PRO 6000 Blackwell", "rtx-pro-6000"),
    ],
)
def test_case_blanks_and_dashes_do_not_count(spelling, name):
    assert device(spelling).name == name


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200-96gb"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-SXM3-32GB", "v100-sxm3-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("Tesla P100-SXM2-16GB", "p100-sxm2"),
        ("Tesla K80", "k80"),
        ("Tesla K40m", "k40"),
        ("GRID K520", "k520"),
        ("GeForce GTX TITAN X", "titan-x-maxwell"),
        ("TITAN X (Pascal)", "titan-x-pascal"),
        ("NVIDIA TITAN Xp", "titan-xp"),
        ("NVIDIA TITAN V", "titan-v"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx-1080-ti"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx-2080-ti"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("AMD Instinct MI210", "mi210"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_what_torch_calls_a_gpu_is_found(told, name):
    assert device(told).name == name


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ("Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz", "xeon-silver-4114"),
        ("Intel(R) Core(TM) i7-3820 CPU @ 3.60GHz", "i7-3820"),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "i7-12700h"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-platinum-8480+"),
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "ryzen-9-7950x"),
        ("CPU i9-10940X", "i9-10940x"),
    ],
)
def test_what_the_system_calls_a_cpu_is_found(told, name):
    assert device(told).name == name


# The distinct GPUs of the column `device` of the project's reference measurements.
@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("GRID K520", "k520"),
        ("GTX 1080", "gtx-1080"),
        ("GTX 1080 Ti", "gtx-1080-ti"),
        ("Maxwell Titan X", "titan-x-maxwell"),
        ("NVIDIA GTX Titan X (Maxwell)", "titan-x-maxwell"),
        ("GTX Titan X (Maxwell)", "titan-x-maxwell"),
        ("Pascal Titan X", "titan-x-pascal"),
        ("Quadro M4000", "quadro-m4000"),
        ("Quadro P5000", "quadro-p5000"),
        ("Tesla K80", "k80"),
        ("GCE K80", "k80"),
        ("EC2 p2.8xlarge K80", "k80"),
        ("EC2 distributed K80 (8 GPUs per p2.8xlarge)", "k80"),
        ("K80/CUDA 8/CuDNN 6", "k80"),
        ("Tesla K40m", "k40"),
        ("Tesla M60", "m60"),
        ("Tesla P4", "p4"),
        ("Tesla T4", "t4"),
        ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
        ("P100/CUDA 8/CuDNN 6", "p100-pcie-16gb"),
        ("DGX-1 P100", "p100-sxm2"),
        ("Tesla V100", "v100-sxm2-16gb"),
        ("V100/CUDA 9/CuDNN 7", "v100-sxm2-16gb"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA DGX-1 (8x V100 16G)", "v100-sxm2-16gb"),
        ("NVIDIA DGX-1 16GB (8x V100 16GB)", "v100-sxm2-16gb"),
        ("Fine-tuning training performance for NER on DGX-1 16G", "v100-sxm2-16gb"),
        ("NVIDIA DGX-1 (8xV100 32G)", "v100-sxm2-32gb"),
        ("NVIDIA DGX-1 32GB (8x V100 32GB)", "v100-sxm2-32gb"),
        ("Pre-training NVIDIA DGX-1 With 32G", "v100-sxm2-32gb"),
        ("QAT NVIDIA DGX-1 (8x V100 32GB)", "v100-sxm2-32gb"),
        ("NVIDIA DGX-2 (16x V100 32G)", "v100-sxm3-32gb"),
        ("NVIDIA DGX-2H (16x V100 32GB)", "v100-sxm3-32gb"),
        ("Pre-training performance: Single-node on NVIDIA DGX-2 V100 (16x V100 32GB)", "v100-sxm3-32gb"),
        ("Pre-training training performance: single-node on DGX-2 32GB", "v100-sxm3-32gb"),
        ("NVIDIA A100 (8x A100 80GB)", "a100-sxm-80gb"),
        ("NVIDIA DGX A100 (8xA100 80G)", "a100-sxm-80gb"),
        ("Fine-tuning NVIDIA DGX A100 (8x A100 40GB)", "a100-sxm-40gb"),
        ("Fine-tuning training performance for SQuAD v1.1 on DGX A100 40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("RTX 3090", "rtx-3090"),
        ("RTX 3090 (pt1.13)", "rtx-3090"),
        ("RTX 4090", "rtx-4090"),
        ("RTX PRO 6000 Max-Q", "rtx-pro-6000-max-q"),
        ("NVIDIA H200", "h200"),
        ("AMD Instinct MI100", "mi100"),
        ("AMD Instinct MI210", "mi210"),
        ("AMD Instinct MI250", "mi250"),
    ],
)
def test_the_gpu_of_a_published_measurement_is_found(label, name):
    assert gpu_in(label).name == name


@pytest.mark.parametrize("label", ["RTX 3090 Ti, batch 8", "RTX 4090 Laptop GPU", "AWS EC2 C5.xlarge (CPU)"])
def test_a_label_with_another_gpu_or_none_finds_nothing(label):
    with pytest.raises(UnknownDevice):
        gpu_in(label)


def test_a_label_that_could_be_two_gpus_is_refused():
    with pytest.raises(AmbiguousDevice, match="titan-x-maxwell, titan-x-pascal"):
        gpu_in("Titan X, batch 64")


@pytest.mark.parametrize(
    "name", ["L40SX", "RTX 3090 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "8x h200", "h20", "", "A1000"]
)
def test_nothing_is_found_by_a_part_of_its_name(name):
    with pytest.raises(UnknownDevice):
        device(name)


@pytest.mark.parametrize("name", ["titan x", "TITAN X", "a100", "NVIDIA A100 Tensor Core GPU", "h100"])
def test_a_name_of_several_devices_lists_them(name):
    with pytest.raises(AmbiguousDevice) as caught:
        device(name)
    for candidate in str(caught.value).split(" can be ")[1].split("; ")[0].split(", "):
        assert device(candidate).name == candidate


def test_an_unknown_name_gets_the_nearest_ones_in_one_line():
    with pytest.raises(
        UnknownDevice, match=r"^no device is called 'h20'; nearest: h200, .*lists all"
    ) as caught:
        device("h20")
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownDevice, match="no link is called 'pcie-9-x16'; nearest: pcie-"):
        link("pcie-9-x16")
    with pytest.raises(UnknownDevice, match="no storage is called 'floppy'"):
        storage("floppy")


def test_a_device_itself_is_taken_as_it_is():
    one = device("t4")
    assert device(one) is one
    assert price(one) == price("t4")


def test_links_and_drives_have_aliases_too():
    assert link("PCIe 4").name == "pcie-4-x16"
    assert link("10 Gbit Ethernet").name == "ethernet-10g"
    assert storage("Samsung 960 PRO").name == "nvme-gen3"


def test_links_that_devices_name_exist():
    for one in devices():
        for name in filter(None, (one.host_link, one.gpu_link)):
            assert link(name).name == name


def test_a_price_is_an_example_or_missing():
    assert price("h200").example
    assert price("i7-3820") is None


def test_raid_0_reads_as_fast_as_all_its_drives():
    five = raid0(storage("nvme-gen3"), 5)
    assert five == storage("raid0-5x-nvme-gen3")
    assert five.read_bandwidth == 17.5e9
    assert five.sources["read_gbs"].startswith("5 × 3.5 GB/s; Samsung 960 PRO")
    with pytest.raises(HardwareError, match="at least 1"):
        raid0(five, 0)

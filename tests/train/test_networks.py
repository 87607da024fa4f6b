"""The zoo builds the published networks, by name and without importing torch early."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from laptime.errors import UnknownNetwork
from laptime.train import networks
from laptime.train.networks.googlenet import BasicConv2d, GoogLeNetOutput
from laptime.train.networks.resnet import ResNet
from laptime.train.networks.vgg import VGG
from laptime.train.networks.zener import ZenerNet

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "googlenet": 13_004_888,
    "resnet50": 25_557_032,
    "zener4": 126_177,
}


def on_meta(name: str, **options: object) -> nn.Module:
    """The network with shapes but no memory: exact counts and shapes in milliseconds."""
    with torch.device("meta"):
        return networks.build(name, **options)


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def logits_of(output: Tensor | GoogLeNetOutput) -> Tensor:
    return output.logits if isinstance(output, GoogLeNetOutput) else output


def test_every_network_has_a_published_parameter_count_here() -> None:
    assert set(networks.names()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_network_has_its_published_parameter_count(name: str) -> None:
    assert parameters(on_meta(name)) == PARAMETERS[name]


def test_googlenet_without_auxiliary_heads_has_half_the_parameters() -> None:
    assert parameters(on_meta("googlenet", aux_heads=False)) == 6_624_904


@pytest.mark.parametrize(
    ("depth", "batch_norm", "expected"),
    [(13, False, 133_047_848), (16, False, 138_357_544), (19, False, 143_667_240), (11, True, 132_868_840)],
)
def test_other_vgg_configurations_have_published_counts(depth: int, batch_norm: bool, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(VGG(depth=depth, batch_norm=batch_norm)) == expected


@pytest.mark.parametrize(
    ("depth", "expected"), [(18, 11_689_512), (34, 21_797_672), (101, 44_549_160), (152, 60_192_808)]
)
def test_other_resnet_depths_have_published_counts(depth: int, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(ResNet(depth=depth)) == expected


@pytest.mark.parametrize("name", networks.names())
@pytest.mark.parametrize("training", [True, False])
def test_logits_have_one_row_per_sample_and_one_column_per_class(name: str, training: bool) -> None:
    network = on_meta(name).train(training)
    output = network(torch.empty(2, *networks.default_input(name), device="meta"))
    assert logits_of(output).shape == (2, networks.num_classes(name))


@pytest.mark.parametrize("name", networks.names())
def test_number_of_classes_can_be_chosen(name: str) -> None:
    network = on_meta(name, num_classes=7)
    output = network(torch.empty(2, *networks.default_input(name), device="meta"))
    assert logits_of(output).shape == (2, 7)


@pytest.mark.parametrize("name", networks.names())
def test_every_parameter_receives_a_gradient(name: str) -> None:
    network = on_meta(name)
    output = network(torch.empty(2, *networks.default_input(name), device="meta"))
    heads = output if isinstance(output, GoogLeNetOutput) else [output]
    torch.stack([head.sum() for head in heads]).sum().backward()  # type: ignore[no-untyped-call]
    assert [path for path, parameter in network.named_parameters() if parameter.grad is None] == []


def test_googlenet_returns_three_heads_in_training_and_one_otherwise() -> None:
    images = torch.empty(2, 3, 224, 224, device="meta")
    network = on_meta("googlenet")
    output = network(images)
    assert isinstance(output, GoogLeNetOutput)
    assert output._fields == ("logits", "aux2", "aux1")
    assert {head.shape for head in output} == {(2, 1000)}
    assert isinstance(network.eval()(images), Tensor)


def test_googlenet_without_auxiliary_heads_returns_logits_in_training() -> None:
    network = on_meta("googlenet", aux_heads=False)
    assert isinstance(network(torch.empty(2, 3, 224, 224, device="meta")), Tensor)


@pytest.mark.parametrize("name", networks.names())
def test_every_relu_module_works_in_place(name: str) -> None:
    relus = [module for module in on_meta(name).modules() if isinstance(module, nn.ReLU)]
    assert all(relu.inplace for relu in relus)


def test_googlenet_convolutions_overwrite_the_output_of_their_batch_norm() -> None:
    block = BasicConv2d(3, 4, kernel_size=1)
    normalised: list[Tensor] = []
    block.bn.register_forward_hook(lambda _module, _inputs, output: normalised.append(output))
    result = block(torch.randn(2, 3, 5, 5))
    assert result.data_ptr() == normalised[0].data_ptr()
    assert block.bn.eps == 0.001
    assert block.conv.bias is None


def test_resnet_strides_on_the_three_by_three_and_keeps_torchvision_names() -> None:
    modules = dict(on_meta("resnet50").named_modules())
    assert modules["layer2.0.conv1"].stride == (1, 1)
    assert modules["layer2.0.conv2"].stride == (2, 2)
    assert modules["layer2.0.downsample.0"].stride == (2, 2)
    assert {"conv1", "bn1", "maxpool", "layer1.0.bn3", "layer4.2.conv3", "avgpool", "fc"} <= set(modules)
    assert "layer1.1.downsample" not in modules


def test_zener_network_has_four_trainable_layers_in_order() -> None:
    weights = [path for path, weight in on_meta("zener4").named_parameters() if weight.dim() >= 2]
    assert weights == ["conv1.weight", "conv2.weight", "fc1.weight", "fc2.weight"]


@pytest.mark.parametrize("size", [25, 31, 64])
def test_zener_network_takes_any_image_size_it_is_built_for(size: int) -> None:
    assert ZenerNet(size=size)(torch.zeros(1, 1, size, size)).shape == (1, 5)


def test_zener_network_grows_to_seven_layers() -> None:
    network = ZenerNet(convolutions=(10, 20, 40, 80, 100))
    assert len([weight for weight in network.parameters() if weight.dim() >= 2]) == 7
    assert network(torch.zeros(1, 1, 32, 32)).shape == (1, 5)


@pytest.mark.parametrize("name", ["resnet50", "zener4"])
def test_same_torch_seed_gives_the_same_weights(name: str) -> None:
    def weights() -> list[Tensor]:
        torch.manual_seed(3)
        return list(networks.build(name).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


@pytest.mark.parametrize("ask", [networks.build, networks.default_input, networks.num_classes])
def test_unknown_name_is_an_error_that_lists_the_known_ones(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UnknownNetwork, match="resnet51") as caught:
        ask("resnet51")
    assert "resnet50" in str(caught.value)


@pytest.mark.parametrize("network", [VGG, ResNet])
def test_unknown_depth_is_an_error_that_lists_the_known_ones(network: type[VGG] | type[ResNet]) -> None:
    with pytest.raises(ValueError, match=r"1\d, .*; got 12"):
        network(depth=12)


def test_listing_networks_does_not_import_torch() -> None:
    program = (
        "import sys; from laptime.train import networks; networks.default_input(networks.names()[0]);"
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0

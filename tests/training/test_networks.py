"""The zoo builds the published networks, by name and without importing torch early."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from laptime.errors import UnknownNetwork
from laptime.training.networks import registry as zoo
from laptime.training.networks.googlenet import BasicConv2d, GoogLeNetOutput
from laptime.training.networks.registry import entry
from laptime.training.networks.resnet import ResNet
from laptime.training.networks.vgg import VGG
from laptime.training.networks.zener import ZenerNet
from laptime.training.objectives import Moment


def linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def convolution(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel**2 + outputs


PARAMETERS = {
    # As published: torchvision's model pages.
    "alexnet": 61_100_840,
    "googlenet": 13_004_888,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    # Counted by hand, layer by layer.
    "autoencoder": linear(64, 32) + linear(32, 64),
    "dbn": (64 * 64 + 64 + 64) + (64 * 48 + 64 + 48) + linear(48, 10),
    "deconv": sum(convolution(i, o, 4) for i, o in [(1, 16), (16, 32), (32, 16)])
    + sum(convolution(i, o, 4) for i, o in [(16, 32), (32, 16), (16, 1)]),
    "fcn5": linear(512, 2048) + 2 * linear(2048, 2048) + linear(2048, 1000),
    "fcn8": linear(512, 2048) + 5 * linear(2048, 2048) + linear(2048, 1000),
    "feedforward": linear(64, 74) + linear(74, 10),
    "gan": 32 * 512 + 2 * 128 + 128 * 64 * 16 + 2 * 64 + convolution(64, 1, 4)  # no biases under batch norm
    + convolution(1, 64, 4) + convolution(64, 128, 4) + linear(128 * 2 * 2, 1),
    "lstm": 256 * 64 + 4 * (128 * 64 + 128 * 128 + 2 * 128) + linear(128, 256),
    "rbm": 64 * 64 + 64 + 64,
    "recursive": 6 * 32 + linear(3 * 32, 32) + linear(32, 2),
    "rnn": 256 * 64 + (128 * 64 + 128 * 128 + 2 * 128) + linear(128, 256),
    "vae": linear(64, 64) + 2 * linear(64, 8) + linear(8, 64) + linear(64, 64),
    "zener4": convolution(1, 6, 5) + convolution(6, 16, 5) + linear(16 * 8 * 8, 120) + linear(120, 5),
    "zener7": sum(convolution(i, o, 5) for i, o in [(1, 10), (10, 20), (20, 40), (40, 80), (80, 100)])
    + linear(100, 120) + linear(120, 5),
}  # fmt: skip
CLASSIFIERS = [name for name in zoo.entries() if zoo.entry(name).classes]


def on_meta(name: str, **options: object) -> nn.Module:
    """The network with shapes but no memory: exact counts and shapes in milliseconds."""
    with torch.device("meta"):
        return zoo.build(name, **options)


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def samples(name: str, count: int = 2, *, device: str = "meta") -> Tensor:
    """What the network takes, filled with anything."""
    known = entry(name)
    if known.ids:
        return torch.randint(known.ids, (count, *known.input), device=device)
    return torch.rand(count, *known.input, device=device)


def batch(name: str, count: int = 2, *, device: str = "meta") -> tuple[Tensor, Tensor]:
    """Samples, and a target for each: a class, or 0 where there are no classes."""
    return samples(name, count, device=device), torch.zeros(count, dtype=torch.int64, device=device)


def logits_of(output: Tensor | GoogLeNetOutput) -> Tensor:
    return output.logits if isinstance(output, GoogLeNetOutput) else output


def test_every_network_has_a_parameter_count_here() -> None:
    assert set(zoo.entries()) == set(PARAMETERS)


@pytest.mark.parametrize("name", PARAMETERS)
def test_network_has_as_many_parameters_as_published_or_counted_by_hand(name: str) -> None:
    assert parameters(on_meta(name)) == PARAMETERS[name] == entry(name).parameters


@pytest.mark.parametrize(("name", "millions"), [("fcn5", 118), ("fcn8", 131)])
def test_large_form_of_the_framework_study_has_its_published_size(name: str, millions: int) -> None:
    network = on_meta(name, inputs=26752, num_classes=26752)
    assert round(parameters(network) / 1e6) == millions
    assert network(torch.empty(2, 26752, device="meta")).shape == (2, 26752)


def test_googlenet_without_auxiliary_heads_has_half_the_parameters() -> None:
    assert parameters(on_meta("googlenet", aux_heads=False)) == 6_624_904


@pytest.mark.parametrize(
    ("depth", "expected"),
    [(11, 132_868_840), (13, 133_053_736), (16, 138_365_992), (19, 143_678_248)],
)
def test_vgg_with_batch_norm_has_published_counts(depth: int, expected: int) -> None:
    assert parameters(on_meta(f"vgg{depth}", batch_norm=True)) == expected


@pytest.mark.parametrize(("depth", "expected"), [(34, 21_797_672), (101, 44_549_160), (152, 60_192_808)])
def test_other_resnet_depths_have_published_counts(depth: int, expected: int) -> None:
    with torch.device("meta"):
        assert parameters(ResNet(depth=depth)) == expected


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("training", [True, False])
def test_logits_have_one_column_per_class(name: str, training: bool) -> None:
    network = on_meta(name).train(training)
    logits = logits_of(network(samples(name)))
    # Character models judge every position, all others the sample as a whole.
    rows = (2, *entry(name).input) if name in ("rnn", "lstm") else (2,)
    assert logits.shape == (*rows, zoo.entry(name).classes)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_number_of_classes_can_be_chosen(name: str) -> None:
    inputs = samples(name) % 7 if entry(name).ids else samples(name)
    assert logits_of(on_meta(name, num_classes=7)(inputs)).shape[-1] == 7


@pytest.mark.parametrize("name", ["autoencoder", "deconv"])
def test_what_is_given_back_has_the_shape_of_what_was_given(name: str) -> None:
    assert on_meta(name)(samples(name)).shape == samples(name).shape


@pytest.mark.parametrize("name", zoo.entries())
def test_every_parameter_is_in_a_group_and_gets_a_gradient_from_its_own_parts(name: str) -> None:
    network, objective = on_meta(name), entry(name).goal(None)
    groups = objective.groups(network)
    missing = {path for path, _ in network.named_parameters()}
    for epoch in (0, 3, 7):  # every stage of a training that has stages
        for part in objective.parts(network, batch(name), Moment(epoch=epoch, epochs=8)):
            part.loss.backward()
            ours = {id(parameter) for parameter in groups[part.group]}
            reached = {path: one for path, one in network.named_parameters() if one.grad is not None}
            assert {id(one) for one in reached.values()} == ours
            missing -= set(reached)
            network.zero_grad()
    assert not missing


@pytest.mark.parametrize("name", zoo.entries())
def test_plain_call_reaches_every_parameter_that_can_be_profiled(name: str) -> None:
    network = on_meta(name)
    output = network(samples(name))
    heads = [output] if isinstance(output, Tensor) else list(output)
    torch.stack([head.sum() for head in heads]).sum().backward()  # type: ignore[no-untyped-call]
    unreached = [path for path, parameter in network.named_parameters() if parameter.grad is None]
    # A deep belief network goes down again only while it is pre-trained.
    assert all(name == "dbn" and path.endswith("visible_bias") for path in unreached)


@pytest.mark.parametrize("name", [name for name in zoo.entries() if PARAMETERS[name] < 1e6])
def test_validation_gives_the_same_number_twice_and_draws_none(name: str) -> None:
    torch.manual_seed(0)
    network, objective = zoo.build(name).eval(), entry(name).goal(None)
    held_out = batch(name, 4, device="cpu")
    state = torch.get_rng_state()
    with torch.no_grad():
        first, second = (objective.judge(network, held_out).loss for _ in range(2))
    assert first.isfinite()
    assert first == second
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", zoo.entries())
def test_every_network_names_the_data_it_is_trained_on(name: str) -> None:
    assert entry(name).data in {"synthetic", "zener", "digits", "text", "trees"}


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


@pytest.mark.parametrize("name", zoo.entries())
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


def test_seven_layer_zener_network_has_the_hidden_layers_of_the_document() -> None:
    weights = [weight.shape[0] for weight in on_meta("zener7").parameters() if weight.dim() >= 2]
    assert weights == [10, 20, 40, 80, 100, 120, 5]


def test_a_feed_forward_network_has_at_least_as_many_hidden_units_as_inputs() -> None:
    assert on_meta("feedforward").get_submodule("fc1").weight.shape == (64 + 10, 64)


def test_an_auto_encoder_that_is_not_narrower_than_its_input_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer hidden units than its 64 inputs; got hidden=64"):
        zoo.build("autoencoder", hidden=64)


def test_gan_of_a_size_that_cannot_be_halved_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4; got 10"):
        zoo.build("gan", size=10)


@pytest.mark.parametrize("size", [12, 32])
def test_gan_makes_images_of_the_size_it_is_built_for(size: int) -> None:
    network = zoo.build("gan", size=size, channels=3)
    images = network(torch.rand(2, 3, size, size), want="images")
    assert images.shape == (2, 3, size, size)
    assert 0 <= images.min() <= images.max() <= 1


def test_unknown_cell_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="rnn, lstm; got 'gru'"):
        zoo.build("rnn", cell="gru")


def test_a_character_model_does_not_see_the_characters_to_come() -> None:
    network = zoo.build("lstm")
    text = samples("lstm", device="cpu")
    changed = text.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 256
    assert torch.equal(network(text)[:, :40], network(changed)[:, :40])


def test_recursive_network_gives_a_tree_the_same_scores_whatever_the_padding() -> None:
    torch.manual_seed(0)
    tree = torch.tensor([[[2, -1, -1], [1, -1, -1], [3, 1, -1], [4, 0, 2]]])  # true and not false
    padding = torch.tensor([0, -1, -1]).expand(1, 5, 3)
    network = zoo.build("recursive")
    torch.testing.assert_close(network(torch.cat([tree, padding], dim=1)), network(tree))


def test_recursive_network_knows_a_node_by_its_children_and_not_by_their_place() -> None:
    torch.manual_seed(0)
    network = zoo.build("recursive")
    # or(true, not false), the leaves in either order.
    one = torch.tensor([[[2, -1, -1], [1, -1, -1], [3, 1, -1], [5, 0, 2]]])
    other = torch.tensor([[[1, -1, -1], [3, 0, -1], [2, -1, -1], [5, 2, 1]]])
    torch.testing.assert_close(network(one), network(other))


@pytest.mark.parametrize("name", ["resnet18", "zener4", "gan", "dbn", "lstm"])
def test_same_torch_seed_gives_the_same_weights(name: str) -> None:
    def weights() -> list[Tensor]:
        torch.manual_seed(3)
        return list(zoo.build(name).parameters())

    assert all(torch.equal(a, b) for a, b in zip(weights(), weights(), strict=True))


@pytest.mark.parametrize("ask", [zoo.build, zoo.entry])
def test_unknown_name_is_an_error_that_lists_the_known_ones(ask: object) -> None:
    assert callable(ask)
    with pytest.raises(UnknownNetwork, match="resnet51") as caught:
        ask("resnet51")
    assert "resnet50" in str(caught.value)


@pytest.mark.parametrize("network", [VGG, ResNet])
def test_unknown_depth_is_an_error_that_lists_the_known_ones(network: type[VGG] | type[ResNet]) -> None:
    with pytest.raises(ValueError, match=r"1\d, .*; got 12"):
        network(depth=12)


def test_importing_the_zoo_does_not_import_torch() -> None:
    program = "import sys; from laptime.training import networks; sys.exit('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0

"""Nothing of a recording is in what is saved, copied or exported in the middle of a step."""

import warnings

import pytest
import torch

from tests.recorder.loops import torch_is_untouched
from tests.recorder.saved_contents import content, difference
from tests.recorder.saved_networks import LARGE, NETWORKS, Convolves
from tests.recorder.saved_trainings import Plan, Trainings
from tests.recorder.saving import BY_VALUE, PLAIN, PROGRAMS, TENSORS, Moment
from tests.recorder.saving import RECORDINGS as HOW

RECORDINGS = tuple(HOW)
LARGE_WAYS = ("network.pt", "network.pickle", "deepcopy-weights.pt")
# One of each kind: convolutions, attention, functions and criterions as attributes, TorchScript, large ones.
AS_PROGRAMS = (
    "convolution",
    "criterion",
    "scriptable",
    "zener4",
    "attention",
    "functions",
    "weight-norm",
    "alexnet",
)
# Their records of source lines differ, which are not told from the rest here.
NOT_COMPARED = {("criterion", "strict-program.pt2"), ("scriptable", "trace.ts")}
IN_SLOW_TESTS = {"resnet18", "vgg13", "vgg16", "vgg19"}
CANNOT_BE_PICKLED = {"weight-norm", "spectral-norm"}  # or, in a step, not copied; programs of few can be made
FIRST_STEP = ("hook 0", "forward 0", "backward 0")  # layers are looked for and operations are read
THIRD_STEP = ("hook 2", "loss 2")  # layers are marked


def known(reason):
    """A limit that docs/method.md names."""
    return pytest.mark.xfail(reason=reason)


METHODS = known("Tensor.to and Tensor.cuda are functions of laptime meanwhile, which cannot be pickled")
COPIED = known("Tensor.to is a function of laptime meanwhile, and an exported program tells")
NAMED = known("the lines of Python that a program was made from are kept with it, ours among them")


@pytest.fixture(autouse=True)
def _torch_is_left_alone():
    yield
    assert torch_is_untouched()


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    return Trainings(tmp_path_factory.mktemp("saved"))


# -- plans ---------------------------------------------------------------------------------------------------


def plain(name):
    """Large networks, whose files have up to 90 MB, are saved in fewer ways, once a training."""
    if name in LARGE:
        ways = {way: PLAIN[way] for way in LARGE_WAYS}
        return Plan(network=name, ways=ways, moments=("loss 2",), loaded=("loss 2",))
    return Plan(
        network=name,
        ways=PLAIN,
        moments=("hook 0", "forward 0", "gradient 0", *THIRD_STEP),
        loaded=("loss 2",),
    )


def tensors(name):
    moments = ("loss 2",) if name in LARGE else ("hook 0", "loss 2")
    return Plan(network=name, ways=TENSORS, moments=moments, loaded=("loss 2",))


def by_value(name):
    return Plan(network=name, ways=BY_VALUE, moments=("hook 0", "loss 2"), loaded=("loss 2",))


def program(name, way):
    moments = (*FIRST_STEP, *THIRD_STEP) if name == "convolution" else THIRD_STEP
    return Plan(network=name, ways={way: PROGRAMS[way]}, moments=moments, loaded=("loss 2",))


def planned(plan, recording, *marks):
    ways = "plain" if "network.pt" in plan.ways else "+".join(plan.ways)
    return pytest.param(plan, recording, id=f"{plan.network}-{ways}-{recording}", marks=marks)


def slow(where):
    return [pytest.mark.slow] * where


def affordable(params):
    """Without those that take minutes, which are to be run by hand: the comparison is the same."""
    return [one for one in params if all(mark.name != "slow" for mark in one.marks)]


def plainly(marks=lambda name: []):
    return affordable(
        [
            planned(
                plain(name),
                recording,
                *slow(name in IN_SLOW_TESTS or (name in LARGE and recording == "run")),
                *marks(name),
            )
            for name in NETWORKS
            for recording in RECORDINGS
        ]
    )


AS_TENSORS = affordable(
    [
        planned(tensors(name), recording, *slow(name != "criterion"))
        for name in NETWORKS
        for recording in RECORDINGS
        if name != "methods"
    ]
)
WITH_CLASSES = [
    planned(by_value(name), recording)
    for name in ("criterion", "gru", "own-state", "averaged")
    for recording in RECORDINGS
]


def in_default_tests(name, way):
    others = {"criterion": ("graph.pt", "program.pt2"), "scriptable": ("script.ts", "program.pt2")}
    return name == "convolution" or way in others.get(name, ())


def hindrances(name, way):
    moved = name in ("scriptable", "functions") or (name == "gan" and way == "program.pt2")
    return [COPIED] * (moved and way.endswith(".pt2"))


def as_programs(marks=lambda name, way: []):
    return affordable(
        [
            planned(program(name, way), recording, *slow(not in_default_tests(name, way)), *marks(name, way))
            for name in AS_PROGRAMS
            for way in PROGRAMS
            for recording in RECORDINGS
            if (name not in LARGE or way == "trace.ts") and (name, way) not in NOT_COMPARED
        ]
    )


# -- what is saved -------------------------------------------------------------------------------------------


def refuse_differences(trainings, plan, recording, moments=None):
    """What was saved is what is saved without a recording, and the training went as without one."""
    bare, recorded = trainings.of(plan, "bare"), trainings.of(plan, recording)
    assert recorded.files.keys() == bare.files.keys()
    for key, expected in bare.files.items():
        if moments is not None and key[0] not in moments:
            continue
        file = recorded.files[key]
        can_fail = plan.network in CANNOT_BE_PICKLED or key[1] in PROGRAMS
        assert expected.error is None or can_fail, (key, expected.error)
        assert type(file.error) is type(expected.error), (key, file.error)
        assert difference(expected.content, file.content) == "" or differs_by_itself(trainings, plan, key), (
            key
        )
    assert difference(bare.weights, recorded.weights) == ""


def differs_by_itself(trainings, plan, key):
    """Whether torch makes something else of the same network each time: TorchScript counts as it goes."""
    if not key[1].endswith(".ts"):
        return False
    bare, again = trainings.of(plan, "bare"), trainings.of(plan, "bare again")
    return difference(bare.files[key].content, again.files[key].content) != ""


def refuse_mentions(trainings, plan, recording):
    """Laptime is named as often as without a recording: only by classes of its own zoo."""
    bare, recorded = trainings.of(plan, "bare"), trainings.of(plan, recording)
    named = {key: file.mentions for key, file in recorded.files.items()}
    assert named == {key: file.mentions for key, file in bare.files.items()}


@pytest.mark.parametrize("way", {**PLAIN, **TENSORS, **BY_VALUE, **PROGRAMS})
def test_the_comparison_sees_a_weight_that_differs_in_its_last_digit(way):
    """Otherwise the tests that follow would prove nothing."""
    network, batch = Convolves(), torch.randn(2, 1, 8, 8)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    network(batch).sum().backward()
    optimizer.step()
    moment = Moment(name="", network=network, batch=batch, optimizer=optimizer)
    save = {**PLAIN, **TENSORS, **BY_VALUE, **PROGRAMS}[way]
    first, second = content(save(moment)), content(save(moment))
    for one in (network.last.weight, optimizer.state[network.last.weight]["momentum_buffer"]):
        one.data.view(-1)[-1] += 1e-6
    assert difference(first, second) == ""
    assert difference(first, content(save(moment))) != ""


@pytest.mark.parametrize(
    ("plan", "recording"),
    [*plainly(lambda name: [METHODS] * (name == "methods")), *AS_TENSORS, *WITH_CLASSES],
)
def test_what_is_saved_in_a_step_is_what_is_saved_without_a_recording(plan, recording, trainings):
    refuse_differences(trainings, plan, recording)
    refuse_mentions(trainings, plan, recording)


@pytest.mark.parametrize(("plan", "recording"), as_programs(hindrances))
def test_a_program_made_in_a_step_is_the_one_made_without_a_recording(plan, recording, trainings):
    refuse_differences(trainings, plan, recording, THIRD_STEP)


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("way", PROGRAMS)
def test_a_program_made_in_the_first_step_is_the_one_made_without_a_recording(way, recording, trainings):
    refuse_differences(trainings, program("convolution", way), recording, FIRST_STEP)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_a_network_traced_before_its_training_answers_as_the_network_does(recording, tmp_path):
    """As TensorBoard's `add_graph` traces it."""
    network, batch, other = Convolves().eval(), torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with HOW[recording](network, optimizer, tmp_path / "run"), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(network, batch)
        network(batch).sum().backward()
    assert torch.equal(traced(other), network(other))


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[NAMED] * (way == "trace.ts")) for way in PROGRAMS],
)
def test_no_program_names_laptime(way, recording, trainings):
    refuse_mentions(trainings, program("convolution", way), recording)


# -- what is loaded ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded(request, trainings):
    """What one process without laptime says of all files: of the tests that were asked for."""
    for item in request.session.items:
        if (
            getattr(item, "originalname", None)
            == test_what_was_saved_loads_and_computes_the_same_without_laptime.__name__
        ):
            plan, recording = item.callspec.params["plan"], item.callspec.params["recording"]
            for one in ("bare", recording):
                trainings.of(plan, one)
    return trainings.load_elsewhere()


@pytest.mark.timeout(900)  # run by itself, it makes all the files first
@pytest.mark.parametrize(("plan", "recording"), [*plainly(), *AS_TENSORS, *WITH_CLASSES, *as_programs()])
def test_what_was_saved_loads_and_computes_the_same_without_laptime(plan, recording, trainings, loaded):
    files = trainings.kept(plan, recording)
    bare = trainings.of(plan, "bare").files.items()
    can_be_saved = {way for (moment, way), file in bare if moment in plan.loaded and file.error is None}
    assert plan.network in LARGE or set(files.values()) == can_be_saved
    assert {file: loaded[file] for file in files if loaded[file]} == {}

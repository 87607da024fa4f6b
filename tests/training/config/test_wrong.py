"""Wrong configurations, and the words that each must be answered with: what it is, and what to change."""

# ruff: noqa: E501 -- the tables are read row by row

import pytest

from laptime.errors import ConfigError
from laptime.training.config.reading import read_config

ZENER = "network.name = 'zener4'\n"
FOLDER = "network = 'alexnet'\n[data]\nkind = 'folder'\npath = '.'\n"


def told(folder, text, *settings, name="wrong.toml"):
    """What a configuration is answered with, without the file's name."""
    (folder / "a.txt").touch()
    file = folder / name
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as error:
        read_config(file, settings)
    return str(error.value).replace(f"{file}", "FILE")


WRONG = {
    # types
    "[train]\nbatch = 'many'": "FILE: train.batch is 'many', which is no whole number; write one such as 32",
    "[train]\nbatch = true": "train.batch is true, which is no whole number; write one such as 32",
    "[train]\nbatch = 1.5": "train.batch is 1.5, which is no whole number; write one such as 32",
    "[train]\nbatch = [32, 64]": "train.batch is [32, 64], which is no whole number; write one such as 32",
    "[train]\nbatch = { size = 3 }": "train.batch is a table, which is no whole number; write one such as 32",
    "[train]\nclip = 'tight'": "train.clip is 'tight', which is no number; write a number above 0",
    "[train]\ncompile = 'perhaps'": "train.compile is 'perhaps', which is neither true nor false; write one of them",
    "[train]\nseed = 2020-01-01": "train.seed is datetime.date(2020, 1, 1), which is no whole number; write one such as 0",
    "[optimizer]\nbetas = [0.9]": "optimizer.betas is [0.9], which does not fit; write a list, each a number from 0",
    "[optimizer]\nbetas = [0.9, 1.5]": "optimizer.betas is [0.9, 1.5], which does not fit; write a list, each a",
    "[record]\nkernels = 'all'": "record.kernels is ['all'], which does not fit; write a list, each a whole number",
    "name = ['a']": "name is ['a'], which is no text; write a text",
    "train = 5": "train is 5, where a table is wanted; write [train] and keys below it",
    "optimizer = 5": 'optimizer is 5, where a table is wanted; write optimizer = "…", or [optimizer] and keys',
    "[train]\nuntil = 5": "train.until is 5, where a table is wanted; write [train.until] and keys below it",
    "[train]\nuntil = {acc = 0.9}": "train.until.acc is unknown; ",
    "[train]\nuntil = {loss = 1, top1 = 0.9}": "train.until has both loss and top1; leave one out",
    "[train]\nuntil.loss = 1\n[validation]\nevery = 0": "validation.every = 0 has none; write 1",
    # ranges
    "[train]\nuntil.loss = 0.0": "train.until.loss is 0.0, which is out of range; write a number above 0",
    "[train]\nuntil.top1 = 90": "train.until.top1 is 90, which is out of range; write a number above 0 to 1",
    "[train]\nbatch = 0": "train.batch is 0, which is out of range; write a whole number of at least 1",
    "[train]\nepochs = -3": "train.epochs is -3, which is out of range; write a whole number of at least 1",
    "[train]\nclip = 0.0": "train.clip is 0.0, which is out of range; write a number above 0",
    "[train]\nmemory_limit = inf": "train.memory_limit is inf, which is no number; write a number above 0",
    "[train]\nseed = -1": "train.seed is -1, which is out of range; write a whole number from 0 to 4294967295",
    "[data]\nsize = 4": "data.size is 4, which is out of range; write a whole number from 8 to 512",
    "[data]\nnoise = 3": "data.noise is 3, which is out of range; write a number from 0 to 2",
    "[optimizer]\nlr = -0.1": "optimizer.lr is -0.1, which is out of range; write a number above 0",
    "[optimizer]\nlr = nan": "optimizer.lr is nan, which is no number; write a number above 0",
    "[optimizer]\nmomentum = 1.0": "optimizer.momentum is 1.0, which is out of range; write a number from 0 to below",
    "[schedule]\ngamma = 2": "schedule.gamma is 2, which is out of range; write a number above 0 to 1",
    "[loader]\nworkers = 1000": "loader.workers is 1000, which is out of range; write a whole number from 0 to 256",
    "[validation]\nfolds = 1": "validation.folds = 1 holds out everything; use 0 for none, or 2 and more",
    # choices
    "optimizer = 'addam'": "optimizer.name is 'addam', which is none of sgd, momentum, rmsprop, adagrad, "
    "adadelta, adam, adamw; did you mean adam?",
    "loss = 'hinge'": "loss.name is 'hinge', which is none of cross-entropy, binary-cross-entropy, squared; write one",
    "[train]\nprecision = 'fp8'": "train.precision is 'fp8', which is none of fp32, bf16, fp16; write one of",
    "data = 'zenner'": "data.kind is 'zenner', which is none of zener, synthetic, folder, digits, text, trees; did "
    "you mean zener?",
    "[train]\ndevice = 'gpu'": "train.device is 'gpu', which is no device; did you mean cuda?",
    "[train]\ndevice = 'abacus'": "train.device is 'abacus', which is no device; write cpu, cuda or cuda:N",
    "[record]\nlayers = 'modul'": "record.layers is 'modul', which divides no network; did you mean module?",
    # keys
    "[train]\nbacth = 32": "train.bacth is unknown; did you mean train.batch?",
    "[trian]\nbatch = 32": "trian is unknown; did you mean train?",
    "batch = 32": "batch is unknown; did you mean train.batch?",
    "[optimizer]\nepochs = 32": "optimizer.epochs is unknown; did you mean train.epochs?",
    "[loss]\nzzz = 1": "loss.zzz is unknown; loss has name",
    "[zzz]\nqqq = 1": "zzz is unknown; there are name, network, data, loader, train, optimizer",
    "[data]\nshape = [3, 8, 8]": "data.shape is no key of zener data; synthetic data has it: leave it out or change "
    "data.kind",
    "[data]\npath = 'x'": "data.path is no key of zener data; folder, text data have it",
    "[network.options]\nsizes = 3": "network.options.sizes is unknown; did you mean size?",
    # values that do not go together
    "[optimizer]\nnesterov = true\nmomentum = 0.0": "optimizer.nesterov needs momentum, and optimizer.momentum is 0",
    "[optimizer]\nname = 'adam'\nnesterov = true": "optimizer.nesterov is for momentum, and optimizer.name is adam; "
    "leave one out",
    "[optimizer]\nname = 'sgd'\nbetas = [0.5, 0.9]": "optimizer.betas is for adam and adamw, and optimizer.name is sgd",
    "[schedule]\nfinal = 0.1": "schedule.final is for linear and cosine, and schedule.name is constant; leave one",
    "[schedule]\nname = 'cosine'\nevery = 3": "schedule.every is for step, and schedule.name is cosine; leave one out",
    "[schedule]\nwarmup_steps = 50\n[train]\nsteps = 40": "schedule.warmup_steps is 50, and train.steps ends the "
    "training at 40; lower the one or raise the other",
    "[train]\ndevice = 'cpu'\nprecision = 'fp16'": "train.precision is fp16, which needs a GPU, and train.device is "
    "cpu; write bf16 or fp32",
    "[train]\nbatch = 64\n[data]\nsamples = 50": "train.batch is 64, more than data.samples, 50; lower it, or write "
    "loader.drop_last = false",
    "[validation]\nfolds = 10\n[data]\nsamples = 5": "validation.folds is 10, more than data.samples, 5; lower it",
    "[validation]\nfolds = 4\nevery = 0": "validation.folds holds data out, and validation.every = 0 never looks at",
    "[validation]\nevery = 2\n[data]\nvalidation_samples = 0": "validation.every needs held-out data, and "
    "data.validation_samples is 0; raise it, or write every = 0",
    "[data]\nsize = 64": "network.options.size is 32, and a sample of the data has 64; write network.options.size = 64, "
    "or data.size = 32",
    "name = '../../escape'": "name is '../../escape', which is no folder's name; write one without slashes and leading",
    "name = 'a/b'": "name is 'a/b', which is no folder's name",
    "name = '.hidden'": "name is '.hidden', which is no folder's name",
    "[train]\nthreads = 100000": "train.threads is 100000, and this machine has ",
    "[network.options]\nnum_classes = 3": "network.options.num_classes is 3, fewer than the 5 classes of the data",
    "[network.options]\nnum_classes = 'ten'": "network.options.num_classes is 'ten'; write a whole number of at least",
    "[network.options]\nhidden = 1979-05-27": "network.options.hidden is datetime.date(1979, 5, 27); write a number",
    "data = 'trees'": "data.kind is trees, which zener4 cannot take; write zener or synthetic",
    # the text itself
    "[train\nbatch = 32": "FILE: TOML cannot be read: Expected ']' at the end of a table declaration",
    "[train]\nbatch = 32\nbatch = 64": "FILE: TOML cannot be read: Cannot overwrite a value",
    "'train.batch' = 3\n[train]\nbatch = 4": "train.batch is given twice; leave one out",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_zener_configuration_says_what_to_change(text, tmp_path):
    answer = told(tmp_path, ZENER + text)
    assert WRONG[text] in answer
    assert answer.startswith("FILE: ")
    assert "\n" not in answer


OTHERS = {
    "": 'FILE: network is missing; write network = "alexnet", or another name',
    "network = 5": 'network is 5, where a table is wanted; write network = "…", or [network]',
    "[network]\nname = 'alexnet'\ndropout = 1.0": "network.dropout is 1.0, which is out of range; write a number from 0 to below 1",
    "network = 'alexnt'": "FILE: no network is called 'alexnt'; did you mean 'alexnet'?",
    "[network]\nname = true": "network.name is true, which is no text",
    "network = 'mine:build'": "data.kind is missing; a network of your own has no default: write zener or synthetic",
    "network = ':build'\ndata = 'zener'": "network.name is ':build'; write module:callable, such as",
    "[network]\nname = 'vgg11'\noptions = 'batch_norm'": "network.options is 'batch_norm', which is no table; write "
    "{ batch_norm = true }",
    "[network]\nname = 'vgg11'\noptions = { batchnorm = true }": "network.options.batchnorm is unknown; did you mean "
    "batch_norm?",
    "network = 'alexnet'\ndata = 'folder'": "data.path is missing; folder data needs it: the folder of images",
    "network = 'alexnet'\n[data]\nkind = 'folder'\npath = 'nowhere'": "nowhere', which does not exist; name a folder",
    "network = 'alexnet'\n[data]\nkind = 'folder'\npath = 'a.txt'": "a.txt', which is no folder; name a",
    "network = 'alexnet'\n[data]\nkind = 'folder'\npath = 3.5": "data.path is 3.5, which is no path; write a path",
    f"{FOLDER}classes = []": "data.classes is empty; name folders, or leave it out for all of them",
    f"{FOLDER}classes = ['cat', '../etc']": "data.classes has '../etc', which is no folder's name; correct it",
    f"{FOLDER}classes = ['cat', 'cat', 'dog']": "data.classes has 'cat' twice; leave one out",
    f"{FOLDER}classes = ['cat']": "data.classes has one class, and there is nothing to tell apart; name two",
    f"{FOLDER}labels = 'labels.json'": "labels.json', which does not exist; name a file that is there",
    "network = 'lstm'\n[data]\nkind = 'text'\npath = '.'": "which is no file; name a file that is there",
    "network = 'lstm'\ndata = 'digits'": "data.kind is digits, which lstm cannot take; write text or synthetic",
    "network = 'lstm'\n[train]\nchannels_last = true": "train.channels_last is for images, and these samples are none",
    "network = 'alexnet'\n[train]\nchannels_last = true\n[data]\nshape = [3]": "train.channels_last is for images",
    "network = 'alexnet'\n[data]\nshape = []": "data.shape is empty; write one sample's, such as [3, 224, 224]",
    "network = 'alexnet'\n[data]\nshape = [3, 0, 224]": "data.shape is [3, 0, 224], which does not fit; write a list",
    "network = 'fcn5'\n[data]\nshape = [100]": "network.options.inputs is 512, and a sample of the data has 100; write",
    "network = 'autoencoder'\nloss = 'cross-entropy'": "loss.name is cross-entropy, and autoencoder tells no classes "
    "apart; write squared, or leave it out",
}


@pytest.mark.parametrize("text", OTHERS)
def test_a_wrong_configuration_of_another_network_says_what_to_change(text, tmp_path):
    answer = told(tmp_path, text)
    assert OTHERS[text] in answer
    assert "\n" not in answer


SETTINGS = {
    "record.kernels=1,x": "--set: record.kernels is [1, 'x'], which does not fit; write a list, each a whole number",
    "record.kernels=5000": "--set: record.kernels has 5000, and the run has at most 6 steps, validation included, "
    "numbered from 0; lower it",
    "record.kernels=6": "at most 6 steps",
}


def test_a_network_called_by_a_number_is_unknown_like_any_other(tmp_path):
    assert "5" in told(tmp_path, "[network]\nname = 5")


@pytest.mark.parametrize("setting", SETTINGS)
def test_kernels_of_no_step_are_told(setting, tmp_path):
    text = f"{ZENER}[data]\nsamples = 64\nvalidation_samples = 20\n[train]\nbatch = 16\nsteps = 2"
    assert SETTINGS[setting] in told(tmp_path, text, setting)


def test_kernels_of_a_step_that_there_may_be_are_taken(tmp_path):
    (tmp_path / "a.toml").write_text(f"{ZENER}[train]\nsteps = 2")
    assert read_config(tmp_path / "a.toml", ["record.kernels=5"]).config.record.kernels == (5,)
    (tmp_path / "b.toml").write_text(FOLDER)
    assert read_config(tmp_path / "b.toml", ["record.kernels=5000"]).config.record.kernels == (5000,)

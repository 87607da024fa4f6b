"""What is known of the published rows beyond their columns: networks, launch files, nodes."""

from __future__ import annotations

FILES = "tensorflow_benchmarks_2017.csv", "nvidia_deeplearningexamples_training.csv"
STRONG = "hkbu_networks_guolinke.csv"
FIXED = {FILES[0]: 141, FILES[1]: 439}  # rows predicted, whatever comes out
MILLIONS = {
    # Trainable parameters in millions, as the papers or model cards give them; ≈ marks an estimate of ours.
    "InceptionV3": 23.8,  # arXiv:1512.00567, Keras
    "ResNet-50": 25.6,  # arXiv:1512.03385, torchvision
    "ResNet-152": 60.2,
    "AlexNet": 61.1,  # arXiv:1404.5997, torchvision
    "VGG16": 138.4,  # arXiv:1409.1556
    "resnet50v1.5": 25.6,
    "RN50v1.5": 25.6,
    "resnext101-32x4d": 44.2,  # arXiv:1611.05431
    "se-resnext101-32x4d": 49.0,  # arXiv:1709.01507
    "efficientnet-b0": 5.3,  # arXiv:1905.11946
    "efficientnet-b4": 19.3,
    "efficientnet-widese-b0": 7.1,  # ≈
    "efficientnet-widese-b4": 27.6,  # ≈
    "efficientnet_v2": 21.5,  # arXiv:2104.00298, S
    "Efficientdet": 3.9,  # arXiv:1911.09070, D0
    "MaskRCNN": 44.4,  # torchvision, ResNet-50 FPN
    "SSD": 22.9,  # ≈, ResNet-50 up to its third stage and six heads
    "BART": 406.3,  # arXiv:1910.13461, large
    "BERT": 336.2,  # arXiv:1810.04805, large
    "BERT/biobert": 108.3,  # base, cased
    "ELECTRA": 110.0,  # arXiv:2003.10555, base
    "Transformer": 210.0,  # arXiv:1706.03762, big
    "Transformer-XL": 192.0,  # NVIDIA's README: base
    "Transformer-XL Large model": 247.0,  # and large
    "Jasper": 333.0,  # arXiv:1904.03288, 10x5
    "QuartzNet": 18.9,  # arXiv:1910.10261, 15x5
    "wav2vec2": 95.0,  # arXiv:2006.11477, base
    "FastPitch": 45.0,  # ≈
    "TFT": 1.6,  # ≈
    "UNet_Medical": 31.0,  # arXiv:1505.04597
    "UNet_3D_Medical": 19.1,  # arXiv:1606.06650
    "nnUNet": 31.2,  # arXiv:1809.10486, 3D
    "VNet": 45.6,  # arXiv:1606.04797
    "fcn5": 11.5,  # guolinke/deep-learning-benchmarks torch7/models/fcn5.lua: 512-2048-2048-2048-1000
    "fcn8": 24.1,
}
# Not predicted: no count of parameters; which rows belong together is not told; two networks updated in turn.
LEFT_OUT = {"MoFlow": "parameters unknown", "SIM": "rows not told apart", "HiFiGAN": "two networks in turn"}
# Batches that a row leaves blank, from the repository's launch files (configs.yml of PyTorch's ConvNets,
# MXNet's README, TensorFlow 2's train_benchmark_*.sh, Efficientdet's scripts): A100 mixed and TF32, V100
# mixed and fp32 with 32 GB, the same with 16 GB.
BLANK = {
    "resnet50v1.5": (256, 256, 256, 112, 256, 112),
    "resnext101-32x4d": (128, 128, 128, 64, 128, 64),
    "se-resnext101-32x4d": (128, 128, 112, 64, 112, 64),
    "efficientnet-b0": (256, 256, 256, 128, 128, 64),
    "efficientnet-widese-b0": (256, 256, 256, 128, 128, 64),
    "efficientnet-b4": (128, 64, 64, 32, 32, 16),
    "efficientnet-widese-b4": (128, 64, 64, 32, 32, 16),
    "RN50v1.5": (256, 256, 256, 128, 192, 96),
    "efficientnet_v1 B0": (1024, 512, 512, 256, 512, 256),
    "efficientnet_v1 B4": (160, 80, 64, 32, 64, 32),
    "efficientnet_v2": (0, 0, 128, 64, 128, 64),
    "Efficientdet": (150, 80, 60, 30, 60, 30),
}
# Images that processors decode: side in pixels. The others come from DALI, from memory, or are synthetic.
DECODED = {
    "InceptionV3": 299,
    **dict.fromkeys(("ResNet-50", "ResNet-152", "AlexNet", "VGG16"), 224),
    **dict.fromkeys(("resnet50v1.5", "resnext101-32x4d", "se-resnext101-32x4d"), 224),
    **dict.fromkeys(("efficientnet-b0", "efficientnet-widese-b0", "efficientnet_v1 B0"), 224),
    **dict.fromkeys(("efficientnet-b4", "efficientnet-widese-b4", "efficientnet_v1 B4"), 380),
    "efficientnet_v2": 300,
    "Efficientdet": 512,
    "MaskRCNN TensorFlow2": 1033,  # 1333 × 800
}
RAGGED = {"Jasper", "QuartzNet", "wav2vec2", "FastPitch", "MaskRCNN", "Transformer"}  # samples of any length
CORES = {
    "p100": 40,
    "k80": 16,
    "a100": 128,
    "v100-sxm2": 40,
    "v100-sxm3": 48,
}  # of a DGX-1, cloud, DGX A100, DGX-2

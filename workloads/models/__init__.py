"""The networks of the published studies: functions and classes that take sizes and give modules."""

from orchestrator.workloads.models.language import LSTM, Transformer
from orchestrator.workloads.models.resnet import cifar_resnet, resnet_50
from orchestrator.workloads.models.small import fully_connected, lenet, simple_cnn
from orchestrator.workloads.models.unet import UNet
from orchestrator.workloads.models.vgg import vgg_11

__all__ = [
    "LSTM",
    "Transformer",
    "UNet",
    "cifar_resnet",
    "fully_connected",
    "lenet",
    "resnet_50",
    "simple_cnn",
    "vgg_11",
]

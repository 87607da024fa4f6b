"""What a machine offers: devices, links, storage, clusters, prices, with sources. Never torch."""

from laptime.hardware.cluster import Cluster
from laptime.hardware.device import PRECISIONS, Device, Link, Price, Storage, raid0
from laptime.hardware.lookup import (
    cluster,
    cluster_links,
    clusters,
    device,
    devices,
    gpu_in,
    link,
    links,
    price,
    storage,
    storages,
)

__all__ = [
    "PRECISIONS",
    "Cluster",
    "Device",
    "Link",
    "Price",
    "Storage",
    "cluster",
    "cluster_links",
    "clusters",
    "device",
    "devices",
    "gpu_in",
    "link",
    "links",
    "price",
    "raid0",
    "storage",
    "storages",
]

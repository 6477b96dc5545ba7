"""What devices can do and cost, for plans: memory, peak, power, links, and an assumed price.

Figures are the vendors' data sheets'; a peak is of dense bf16 matmuls with fp32 sums (fp16 on V100, which has no bf16).
Prices are an assumption, US dollars an hour of one device as clouds asked in 2025 without a contract; `--price` sets
another. What a device reaches of its peak is stated by the user as MFU, never assumed from the table.
"""

from dataclasses import dataclass

from data_prep.errors import ConfigError

GIB = 2**30
NODE = 8  # GPUs that are linked directly; more than these are joined by a network


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """`link` and `network` are bytes a second one way and a GPU, at best: inside a node, and between nodes."""

    name: str
    memory: int | None  # bytes; None: this machine's own
    peak: float | None  # FLOPs a second; None: it depends on the model of CPU, and is measured
    watts: float | None  # board power
    link: float
    network: float
    price: float
    source: str
    varlen: bool = True  # whether attention over runs of tokens is served: from Ampere on


# NVLink and PCIe are quoted both ways together, so half of it is one way; networks are those of the vendors' own
# systems (DGX: one port of 400 or 200 Gb/s a GPU), and 100 Gb/s of a machine with PCIe cards.
DEVICES: dict[str, Device] = {
    "h100": Device(
        name="H100 SXM 80 GB", memory=80 * GIB, peak=989e12, watts=700, link=450e9, network=50e9, price=2.5,
        source="NVIDIA H100 data sheet (989 TFLOPS dense bf16, NVLink 900 GB/s)",
    ),
    "h200": Device(
        name="H200 SXM 141 GB", memory=141 * 10**9, peak=989e12, watts=700, link=450e9, network=50e9, price=3.0,
        source="NVIDIA H200 data sheet (989 TFLOPS dense bf16, NVLink 900 GB/s)",
    ),
    "a100": Device(
        name="A100 SXM 80 GB", memory=80 * GIB, peak=312e12, watts=400, link=300e9, network=25e9, price=1.6,
        source="NVIDIA A100 data sheet (312 TFLOPS dense bf16, NVLink 600 GB/s)",
    ),
    "a100-40": Device(
        name="A100 SXM 40 GB", memory=40 * GIB, peak=312e12, watts=400, link=300e9, network=25e9, price=1.2,
        source="NVIDIA A100 data sheet (312 TFLOPS dense bf16, NVLink 600 GB/s)",
    ),
    "v100": Device(
        name="V100 SXM2 32 GB", memory=32 * GIB, peak=125e12, watts=300, link=150e9, network=12.5e9, price=0.8,
        source="NVIDIA V100 data sheet (125 TFLOPS fp16, NVLink 300 GB/s)", varlen=False,
    ),
    "l40s": Device(
        name="L40S 48 GB", memory=48 * GIB, peak=362e12, watts=350, link=32e9, network=12.5e9, price=0.9,
        source="NVIDIA L40S data sheet (362 TFLOPS dense bf16, PCIe 4.0 x16)",
    ),
    "rtx4090": Device(
        name="GeForce RTX 4090 24 GB", memory=24 * GIB, peak=165.2e12, watts=450, link=32e9, network=12.5e9, price=0.4,
        source="NVIDIA Ada GPU architecture, appendix (165.2 TFLOPS dense bf16 with fp32 sums, PCIe 4.0 x16)",
    ),
    "cpu": Device(
        name="CPU", memory=None, peak=None, watts=None, link=10e9, network=1.25e9, price=0.04,
        source="this machine; a core is a device",
    ),
}  # fmt: skip


def device_of(name: str) -> Device:
    """The device called `name`. ConfigError where there is none."""
    if name not in DEVICES:
        raise ConfigError(f"--device: no device is called {name!r}; there are {', '.join(DEVICES)}")
    return DEVICES[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """So many devices that reach a stated share of their peak."""

    device: Device
    gpus: int
    mfu: float
    price: float  # an hour of one device

    @property
    def source(self) -> str:
        """What hours made of it go by."""
        return f"stated MFU {self.mfu:.2f} on {self.gpus} × {self.device.name}"

    def seconds(self, flops: float) -> float | None:
        """Of so many model FLOPs on all devices together; None where the device's peak is not known."""
        return None if self.device.peak is None else flops / (self.device.peak * self.mfu * self.gpus)

    def cost(self, seconds: float) -> float:
        """Of all devices for so long."""
        return seconds / 3600 * self.gpus * self.price

    def energy(self, seconds: float) -> float | None:
        """kWh of the boards at their full power; None where that is not known."""
        return None if self.device.watts is None else seconds / 3600 * self.gpus * self.device.watts / 1000


def stated(name: str, gpus: int, mfu: float = 0.4, price: float | None = None) -> Stated:
    """`gpus` devices called `name`. ConfigError for an unknown name, and for figures out of range."""
    device = device_of(name)
    if not 0.0 < mfu <= 1.0:
        raise ConfigError(f"--mfu: {mfu:g} is no share of a peak; give a number above 0 and up to 1")
    if gpus < 1:
        raise ConfigError(f"--gpus: {gpus} devices train nothing; give one or more")
    return Stated(device=device, gpus=gpus, mfu=mfu, price=device.price if price is None else price)

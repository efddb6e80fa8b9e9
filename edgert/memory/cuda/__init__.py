"""Memory, streams and kernels of NVIDIA GPUs. Only this package uses PyCUDA, which it imports when a device is opened.

device = open_device()
with device:                                # current in this thread
    stream = device.stream()
    pool = SharedPool(device, 3 * 2**20)
    array, lease = pool.acquire()
    array[:] = 0                            # filled by the host
    lease.send(stream)                      # copied to the GPU, if necessary
    ...                                     # enqueue work that reads lease.addresses_of([array]) on the stream
    lease.after(stream)                     # the memory is not reused before that work is done
    lease.release()
"""

from edgert.memory.cuda.device import Block, CudaDevice, Graph, open_device
from edgert.memory.cuda.gpu_context import Traits, memory_kind, tensor_kind
from edgert.memory.cuda.nvrtc import Kernel, Launch, Module, Nvrtc, nvrtc
from edgert.memory.cuda.pools import Loans, SharedLease, SharedPool, StreamLease, StreamMarks, ViewPool
from edgert.memory.cuda.stream import Event, Stream
from edgert.memory.cuda.view import DeviceView, from_cuda_array, from_dlpack

__all__ = [
    "Block",
    "CudaDevice",
    "DeviceView",
    "Event",
    "Graph",
    "Kernel",
    "Launch",
    "Loans",
    "Module",
    "Nvrtc",
    "SharedLease",
    "SharedPool",
    "Stream",
    "StreamLease",
    "StreamMarks",
    "Traits",
    "ViewPool",
    "from_cuda_array",
    "from_dlpack",
    "memory_kind",
    "nvrtc",
    "open_device",
    "tensor_kind",
]

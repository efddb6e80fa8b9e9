# Every version that an image is made of. From the repository:
#   docker buildx bake -f docker/docker-bake.hcl cpu          (or gpu, jetpack6, jetpack7)
#   PYCUDA=2025.1 docker buildx bake -f docker/docker-bake.hcl jetpack6

variable "PYTHON" { # https://hub.docker.com/_/python/tags
  default = "python:3.12.12-slim-bookworm"
}

variable "CUDA" { # https://hub.docker.com/r/nvidia/cuda/tags; ends in -devel-… to build and -runtime-… to run
  default = "nvidia/cuda:13.0.2-cudnn"
}

variable "UBUNTU" { # what CUDA is on
  default = "ubuntu24.04"
}

variable "L4T_TENSORRT" { # JetPack 6.1 and 6.2: https://catalog.ngc.nvidia.com/orgs/nvidia/containers/l4t-tensorrt/tags
  default = "nvcr.io/nvidia/l4t-tensorrt:r10.3.0"
}

variable "SBSA_TENSORRT" { # JetPack 7.0 has TensorRT 10.13.3: https://catalog.ngc.nvidia.com/orgs/nvidia/containers/tensorrt/tags
  default = "nvcr.io/nvidia/tensorrt:25.09-py3"
}

variable "PYCUDA" { # the only thing that is compiled: https://pypi.org/project/pycuda
  default = "2026.1"
}

variable "ONNXRUNTIME_GPU" { # for CUDA 13: https://pypi.org/project/onnxruntime-gpu
  default = "1.31.1"
}

group "default" {
  targets = ["cpu"]
}

target "cpu" {
  dockerfile = "docker/cpu.Dockerfile"
  tags       = ["edgert:cpu"]
  args = {
    BASE   = PYTHON
    EXTRAS = "plan,openvino"
  }
}

target "gpu" {
  dockerfile = "docker/cuda.Dockerfile"
  tags       = ["edgert:gpu"]
  platforms  = ["linux/amd64"]
  args = {
    BUILD_BASE      = "${CUDA}-devel-${UBUNTU}"
    RUN_BASE        = "${CUDA}-runtime-${UBUNTU}"
    EXTRAS          = "plan,nvml"
    PYCUDA          = PYCUDA
    ONNXRUNTIME_GPU = ONNXRUNTIME_GPU
  }
}

target "jetpack6" {
  dockerfile = "docker/cuda.Dockerfile"
  tags       = ["edgert:jetpack6"]
  network    = "host" # kernels of Jetson Linux up to 36.4.3 have no iptable_raw, which Docker 28 wants for another
  platforms  = ["linux/arm64"]
  args = {
    BUILD_BASE = "${L4T_TENSORRT}-devel"
    RUN_BASE   = "${L4T_TENSORRT}-runtime"
    EXTRAS     = "plan"
    PYCUDA     = PYCUDA
  }
}

target "jetpack7" {
  dockerfile = "docker/cuda.Dockerfile"
  tags       = ["edgert:jetpack7"]
  network    = "host" # kernels of Jetson Linux up to 36.4.3 have no iptable_raw, which Docker 28 wants for another
  platforms  = ["linux/arm64"]
  args = {
    BUILD_BASE = SBSA_TENSORRT
    RUN_BASE   = SBSA_TENSORRT
    EXTRAS     = "plan,nvml"
    PYCUDA     = PYCUDA
  }
}

# The lab on an NVIDIA GPU: the kernels, the recordings and the tests of tests/gpu.
#   docker build -t labkernels .
#   docker run --rm --gpus all labkernels doctor
#   docker run --rm --gpus all -v "$PWD/rows:/rows" labkernels record decode_tensor_cores \
#     --out /rows --commit "$(git rev-parse HEAD)"    # the image holds no git history
# The driver comes from the host; NVRTC, Triton and CUDA's libraries come with the packages.
FROM python:3.11-slim-bookworm
RUN apt-get update \
 && apt-get install -y --no-install-recommends make g++ git \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /lab
COPY requirements.in requirements.lock ./
RUN python -m pip install --no-cache-dir --require-hashes -r requirements.lock \
 && python -m pip install --no-cache-dir "$(grep ^torch== requirements.in)"
COPY . .
RUN python -m pip install --no-cache-dir --no-deps --no-build-isolation -e .
ENTRYPOINT ["labkernels"]
CMD ["doctor"]

"""What stock SGLang lacks without a GPU: reference kernels and small repairs, only where CUDA is absent."""

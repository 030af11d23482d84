"""Operations on tensors. Each is a function with a contract and a plain torch form: the truth.

Faster backends stand behind `door`, which alone chooses: `native` calls kernels in C for a CPU,
built when outvote is installed; `triton` has those for a GPU. With TRITON_INTERPRET=1, Triton runs
its kernels on a CPU in one thread (OMP_NUM_THREADS=1), slowly: this tests them without a GPU.
"""

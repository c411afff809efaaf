"""The commands around a machine, its kernels and the study's form."""

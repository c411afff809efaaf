# A step of PyTorch's own on the GPU of a machine of kind cuda. Where it cannot run, its file says why.
rule save_on_cpu:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        library=compiled_kernels,
        own=network_file,
    output:
        record="results/{machine}/{scale}/{network}/{optimizer}/{limit}/torch.json",
    log:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/torch.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/{optimizer}/{limit}/torch.benchmark.tsv"
    wildcard_constraints:
        optimizer=SAVE_ON_CPU,
    conda:
        "../envs/measure.yaml"
    threads: timing_threads
    resources:
        **NODE,
        timing=1,
        mem_mb=scale_memory_mb,
        runtime=scale_minutes,
    params:
        machine=machine_params,
        network=network_params,
        options=run_options,
        seed=STUDY.config.seed,
        counts=STUDY.config.counts,
        # Installing PyTorch, or another version of it, has the step run again.
        torch=installed_version("torch"),
    message:
        "Running {wildcards.network} ({wildcards.scale}) by PyTorch under save_on_cpu, limit {wildcards.limit}"
    script:
        "../workflow/scripts/save_on_cpu.py"

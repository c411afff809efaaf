# Which operators share a kernel: every grouping of a step's operators is priced, the cheapest are measured; rewards are
# fitted to these and to searches, policies learned from rewards, and steps measured that policies fuse -> table -> picture. Most networks are blocks that PyTorch defines: `make figures/fusion/gap.pdf` sees to it that it is there.


rule fusion_graph:
    input:
        own=network_file,
    output:
        training="results/{machine}/{scale}/fusion/{network}/training/graph.pkl",
        inference="results/{machine}/{scale}/fusion/{network}/inference/graph.pkl",
    log:
        "logs/{machine}/{scale}/fusion/{network}/graph.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/graph.benchmark.tsv"
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=scale_memory_mb,
        runtime=scale_minutes,
    params:
        machine=machine_params,
        network=network_params,
        seed=STUDY.config.seed,
    message:
        "Reading the steps of {wildcards.network} ({wildcards.scale})"
    script:
        "../workflow/scripts/fusion.py"


rule fusion_exhaustive:
    input:
        graph="results/{machine}/{scale}/fusion/{network}/{step}/graph.pkl",
    output:
        optimum="results/{machine}/{scale}/fusion/{network}/{step}/optimum.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/optimum.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/optimum.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
    # Measuring comes first; what needs one core each is done side by side afterwards.
    priority: 2
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
        fusion=fusion_exhaustive,
        options=profile_options,
        run=run_options,
        seed=STUDY.config.seed,
    message:
        "Pricing every grouping of the operators of {wildcards.network} ({wildcards.scale}, {wildcards.step})"
    script:
        "../workflow/scripts/fusion.py"


rule fusion_search:
    input:
        graph="results/{machine}/{scale}/fusion/{network}/{step}/graph.pkl",
    output:
        search="results/{machine}/{scale}/fusion/{network}/{step}/{algorithm}-{search_seed}.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/{algorithm}-{search_seed}.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/{algorithm}-{search_seed}.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
        algorithm="|".join(inputs.SEARCHES),
        search_seed=r"\d+",
    priority: 2
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
        fusion=fusion_search,
        run=run_options,
        seed=STUDY.config.seed,
    message:
        "Searching groupings of the operators of {wildcards.network} ({wildcards.scale}, {wildcards.step}): {wildcards.algorithm}"
    script:
        "../workflow/scripts/fusion.py"


rule fusion_problem:
    input:
        unpack(fusion_problem),
        graph="results/{machine}/{scale}/fusion/{network}/{step}/graph.pkl",
    output:
        problem="results/{machine}/{scale}/fusion/{network}/{step}/problem.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/problem.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/problem.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
    priority: 1
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=scale_memory_mb,
        runtime=scale_minutes,
    params:
        machine=machine_params,
        network=network_params,
        seed=STUDY.config.seed,
    message:
        "Reading which decisions of {wildcards.network} ({wildcards.scale}, {wildcards.step}) were measured"
    script:
        "../workflow/scripts/fusion_learning.py"


rule fusion_rewards:
    input:
        problem=rules.fusion_problem.output.problem,
    output:
        rewards="results/{machine}/{scale}/fusion/{network}/{step}/rewards.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/rewards.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/rewards.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
    priority: 1
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        machine=machine_params,
        seed=STUDY.config.seed,
    message:
        "Fitting what decisions of {wildcards.network} ({wildcards.scale}, {wildcards.step}) are worth"
    script:
        "../workflow/scripts/fusion_learning.py"


rule fusion_promises:
    input:
        graph="results/{machine}/{scale}/fusion/{network}/{step}/graph.pkl",
        problem=rules.fusion_problem.output.problem,
        rewards=rules.fusion_rewards.output.rewards,
    output:
        promises="results/{machine}/{scale}/fusion/{network}/{step}/promises.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/promises.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/promises.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
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
        fusion=fusion_steps,
        run=run_options,
        seed=STUDY.config.seed,
    message:
        "Measuring what rewards ask of {wildcards.network} ({wildcards.scale}, {wildcards.step})"
    script:
        "../workflow/scripts/fusion_learning.py"


rule fusion_policies:
    input:
        unpack(fusion_learning),
    output:
        selection="results/{machine}/{scale}/fusion/selection.json",
        policies="results/{machine}/{scale}/fusion/policies.json",
    log:
        "logs/{machine}/{scale}/fusion/policies.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/policies.benchmark.tsv"
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        machine=machine_params,
        seed=STUDY.config.seed,
    message:
        "Learning policies for fusion ({wildcards.scale})"
    script:
        "../workflow/scripts/fusion_learning.py"


rule fusion_bench:
    input:
        graph="results/{machine}/{scale}/fusion/{network}/{step}/graph.pkl",
        policies=rules.fusion_policies.output.policies,
    output:
        bench="results/{machine}/{scale}/fusion/{network}/{step}/bench.json",
    log:
        "logs/{machine}/{scale}/fusion/{network}/{step}/bench.log",
    benchmark:
        "logs/{machine}/{scale}/fusion/{network}/{step}/bench.benchmark.tsv"
    wildcard_constraints:
        step="training|inference",
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
        fusion=fusion_steps,
        run=run_options,
        is_held_out=is_held_out,
        seed=STUDY.config.seed,
    message:
        "Measuring {wildcards.network} ({wildcards.scale}, {wildcards.step}) as policies fuse it"
    script:
        "../workflow/scripts/fusion_learning.py"


rule placements:
    input:
        graph="results/{machine}/{scale}/{network}/graph.json",
        profile="results/{machine}/{scale}/{network}/profile.parquet",
        links="results/{machine}/links.json",
    output:
        placements="results/{machine}/{scale}/{network}/placements.json",
    log:
        "logs/{machine}/{scale}/{network}/placements.log",
    benchmark:
        "logs/{machine}/{scale}/{network}/placements.benchmark.tsv"
    conda:
        "../envs/measure.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=solve_minutes,
    params:
        machine=machine_params,
        fusion=fusion_placements,
        options=STUDY.config.solve.model_dump(),
        seed=STUDY.config.seed,
        counts=STUDY.config.counts,
    message:
        "Searching placements of the tensors of {wildcards.network} ({wildcards.scale})"
    script:
        "../workflow/scripts/fusion_learning.py"


rule figure_fusion:
    input:
        unpack(fusion_files),
    output:
        pdf="figures{on}/fusion/{figure}.pdf",
        png=picture("figures{on}/fusion/{figure}.png"),
        csv=table("figures{on}/fusion/{figure}.csv"),
    log:
        "logs/figures{on}/fusion/{figure}.log",
    benchmark:
        "logs/figures{on}/fusion/{figure}.benchmark.tsv"
    wildcard_constraints:
        on=r"(/[A-Za-z0-9_.-]+-\d+t)?",
        figure="|".join(inputs.FUSION_FIGURES),
    conda:
        "../envs/figures.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=5,
    params:
        style=STUDY.config.style.model_dump(),
    message:
        "Drawing {output.pdf}"
    script:
        "../workflow/scripts/figure_fusion.py"


rule fusion_figures:
    input:
        [f"figures/fusion/{name}.pdf" for name in inputs.FUSION_FIGURES],

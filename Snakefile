# AutoTM's study as a pipeline: kernel_profile -> ilp_solve -> compile -> run -> figure.
from snakemake.utils import min_version

from autotm.stages.jobs import end_jobs_when_asked

min_version("9.27")


configfile: "config/config.yaml"


report: "workflow/report/study.rst"


include: "rules/common.smk"
include: "rules/failures.smk"
include: "rules/calibrate.smk"
include: "rules/kernel_profile.smk"
include: "rules/extrapolate.smk"
include: "rules/modelled_gpu.smk"
include: "rules/ilp_solve.smk"
include: "rules/compile.smk"
include: "rules/run.smk"
include: "rules/jobs_ahead.smk"
include: "rules/framework.smk"
include: "rules/figures.smk"
include: "rules/verification.smk"
include: "rules/timing_study.smk"
include: "rules/control_flow.smk"
include: "rules/fusion.smk"


onstart:
    # Snakemake limits how many jobs start in a time span. For that it wakes its scheduler once in each span for each job
    # that has finished, to the end: a fifth of a core, beside what is timed, after 150 jobs. No option turns it off.
    workflow.scheduler.job_rate_limiter = None
    if workflow.local_exec:  # elsewhere the executor cancels its jobs, by commands that must not be ended
        end_jobs_when_asked()
        tell_jobs_due()


localrules:
    figures,
    figure,
    figure_timing_study,
    figure_control_flow,
    control_flow_figures,
    figure_fusion,
    fusion_figures,
    records_table,
    verification_table,
    verification,


rule figures:
    default_target: True
    input:
        [f"figures/{name}.pdf" for name in FIGURES if name != "devices"],  # which is of other machines
        "figures/timing_study.pdf",

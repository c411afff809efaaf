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
include: "rules/tune.smk"
include: "rules/ilp_solve.smk"
include: "rules/compile.smk"
include: "rules/run.smk"
include: "rules/jobs_ahead.smk"
include: "rules/framework.smk"
include: "rules/figures.smk"
include: "rules/verification.smk"
include: "rules/plan_figures.smk"
include: "rules/timing_study.smk"


# Snakemake's limit on job starts (100 a second unless told) wakes its scheduler once a second more for each job that has
# finished: after 200 jobs it takes most of a core from what is being timed. Here jobs are long and few.
onstart:
    starts = workflow.scheduling_settings.max_jobs_per_timespan
    if starts is not None and (starts.max_jobs, starts.timespan) == (100, 1):
        workflow.scheduler.job_rate_limiter = None
    if workflow.local_exec:  # elsewhere the executor cancels its jobs, by commands that must not be ended
        end_jobs_when_asked()
        tell_jobs_due()


localrules:
    figures,
    figure_7,
    figure_8,
    figure_8_talk,
    figure_9,
    figure_10,
    figure_10a_all_fast,
    figure_10a_all_slow,
    figure_10a_synchronous,
    figure_11,
    figure_12,
    figure_12_timeline,
    records_table,
    verification_table,
    verification,
    front,
    ilp_times,
    price_performance,
    cost_performance,
    kernel_plot,
    devices,
    heap,
    links,
    figure_timing_study,


rule figures:
    default_target: True
    input:
        "figures/fig7.pdf",
        "figures/fig8.pdf",
        "figures/fig8_talk.pdf",
        "figures/fig9.pdf",
        "figures/fig10.pdf",
        "figures/fig10a_all_fast.pdf",
        "figures/fig10a_all_slow.pdf",
        "figures/fig10a_synchronous.pdf",
        "figures/fig11.pdf",
        "figures/fig12.pdf",
        "figures/fig12_timeline.pdf",
        "figures/front.pdf",
        "figures/ilp_times.pdf",
        "figures/price_performance.pdf",
        "figures/cost_performance.pdf",
        "figures/kernel_plot.pdf",
        "figures/heap.pdf",
        "figures/links.pdf",
        "figures/timing_study.pdf",

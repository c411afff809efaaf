# AutoTM's study as a pipeline: kernel_profile -> ilp_solve -> compile -> run -> figure.
# It lies in the repository's root, not in workflow/, so that figures/fig10.pdf is a target from where one stands.
from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/calibrate.smk"
include: "rules/kernel_profile.smk"
include: "rules/extrapolate.smk"
include: "rules/tune.smk"
include: "rules/ilp_solve.smk"
include: "rules/compile.smk"
include: "rules/run.smk"
include: "rules/figures.smk"
include: "rules/timing_study.smk"


localrules:
    figures,
    figure_7,
    figure_9,
    figure_10,
    figure_11,
    figure_timing_study,


rule figures:
    default_target: True
    input:
        "figures/fig7.pdf",
        "figures/fig9.pdf",
        "figures/fig10.pdf",
        "figures/fig11.pdf",
        "figures/timing_study.pdf",

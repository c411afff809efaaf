# AutoTM's study as a pipeline: kernel_profile -> ilp_solve -> compile -> run -> figure.
# It lies in the repository's root, not in workflow/, so that figures/fig10.pdf is a target from where one stands.
from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "rules/common.smk"
include: "rules/calibrate.smk"
include: "rules/kernel_profile.smk"
include: "rules/tune.smk"
include: "rules/ilp_solve.smk"
include: "rules/compile.smk"
include: "rules/run.smk"
include: "rules/figures.smk"


localrules:
    figures,
    figure_10,


rule figures:
    default_target: True
    input:
        "figures/fig10.pdf",

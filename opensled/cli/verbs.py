"""The commands of `opensled`, and the modules that run them."""

from dataclasses import dataclass

from opensled.process import distribution


@dataclass(frozen=True)
class Verb:
    """A command; `config` and `run` are "module:attribute", so listing the verbs imports none of them.

    `run(config) -> int` gives the exit code. `starts`: a module that it starts in another process, "" = none.
    """

    summary: str
    example: str
    config: str
    run: str
    starts: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of OpenSLED that the command needs."""
        named = (self.config, self.run, self.starts)
        return tuple(dict.fromkeys(each.partition(":")[0] for each in named if each))

    @property
    def here(self) -> bool:
        """Whether this copy of OpenSLED has the command. A checkout has all; the package for devices has the fewest."""
        return all(map(distribution.has, self.modules))


VERBS = {
    "serve": Verb(
        "serve a target that verifies the drafts of many devices",
        "opensled serve --model tiny --listen 0.0.0.0:7411 --tokens tokens.txt \\\n"
        "      --tls-cert cert.pem --tls-key key.pem",
        "verify_server.options.serve_config:ServeConfig",
        "verify_server.start.command:serve",
    ),
    "pair": Verb(
        "pair a device: give it this home's certificate and a token",
        "opensled pair",
        "home.desk.config:PairConfig",
        "home.desk.command:pair",
    ),
    "pair list": Verb(
        "list the paired devices",
        "opensled pair list",
        "home.desk.config:PairListConfig",
        "home.desk.command:list_paired",
    ),
    "pair rename": Verb(
        "give a paired device another name",
        "opensled pair rename raspberrypi kitchen",
        "home.desk.config:PairRenameConfig",
        "home.desk.command:rename",
    ),
    "pair revoke": Verb(
        "withdraw the token of a paired device",
        "opensled pair revoke kitchen",
        "home.desk.config:PairRevokeConfig",
        "home.desk.command:revoke",
    ),
    "kept list": Verb(
        "list the texts that a server keeps for training, by tenant",
        "opensled kept list --keep-text kept/",
        "adapt.kept.config:KeptListConfig",
        "adapt.kept.command:list_kept",
    ),
    "kept delete": Verb(
        "delete the kept texts of a tenant",
        "opensled kept delete kitchen --keep-text kept/",
        "adapt.kept.config:KeptDeleteConfig",
        "adapt.kept.command:delete_kept",
    ),
    "relay": Verb(
        "vet drafts near the devices, with a remote target above",
        "opensled relay --model qwen-1.5b.gguf --upstream 192.0.2.1:7411",
        "relay.config:RelayConfig",
        "relay.command:relay",
    ),
    "edge": Verb(
        "draft on this device, and serve an OpenAI-compatible API",
        "opensled edge --server 192.0.2.1:7411 --draft-model qwen-0.5b-q4.gguf",
        "edge_client.device.config:EdgeConfig",
        "edge_client.device.command:edge",
    ),
    "service install": Verb(
        "start a server, device or relay at every boot (systemd)",
        "opensled service install serve -- --paired --model smollm2",
        "home.service.config:InstallConfig",
        "home.service.command:install",
    ),
    "service remove": Verb(
        "stop a service, and remove its files",
        "opensled service remove edge",
        "home.service.config:RemoveConfig",
        "home.service.command:remove",
    ),
    "service status": Verb(
        "show services: state, start time, last error, page",
        "opensled service status --json",
        "home.service.config:StatusConfig",
        "home.service.command:status",
    ),
    "generate": Verb(
        "answer one prompt with the target",
        'opensled generate "Turn on the kitchen light."',
        "edge_client.device.prompt_config:GenerateConfig",
        "edge_client.device.command:generate",
    ),
    "chat": Verb(
        "chat with the target in the terminal",
        "opensled chat --show-drafts",
        "edge_client.device.prompt_config:ChatConfig",
        "edge_client.terminal.chat:chat",
    ),
    "run": Verb(
        "serve a model and chat with it; download it if necessary",
        "opensled run smollm2",
        "edge_client.terminal.run_config:RunConfig",
        "edge_client.terminal.run_command:run",
        starts="verify_server",
    ),
    "top": Verb(
        "watch servers live: sessions, tokens, steps, KV memory",
        "opensled top --metrics 127.0.0.1:9410",
        "opensled.cli.top:TopConfig",
        "opensled.cli.top:top",
    ),
    "selftest": Verb(
        "test whether a target on a GPU writes the correct answers",
        "opensled selftest --model smollm2 --device cuda",
        "verify_server.gpu_check.config:SelftestConfig",
        "verify_server.gpu_check.command:selftest",
    ),
    "doctor": Verb(
        "find problems of this device or its server, with remedies",
        "opensled doctor --server 192.0.2.1:7411 --tls --token-file token.txt",
        "edge_client.device.config:DoctorConfig",
        "edge_client.doctor.doctor:doctor",
    ),
    "demo": Verb(
        "run a server and devices, and check their answers",
        "opensled demo --json",
        "lab.testbed.config:DemoConfig",
        "lab.testbed.demo:demo",
    ),
    "plan": Verb(
        "predict speed and users for given hardware",
        "opensled plan --accelerator rtx4090 --devices pi --users 10",
        "lab.testbed.config:PlanConfig",
        "lab.testbed.planner.command:plan",
    ),
    "bench serve": Verb(
        "put load on a fleet, and measure the service of its users",
        "opensled bench serve --fleet kitchen --baselines centralized,sled-continuous",
        "lab.testbed.load.config:BenchServeConfig",
        "lab.testbed.load.command:bench_serve",
    ),
    "bench drafts": Verb(
        "measure whether drafts would pay on any running server",
        "opensled bench drafts http://127.0.0.1:8080 --draft-url http://mac.local:8080",
        "lab.testbed.bench_drafts.config:BenchDraftsConfig",
        "lab.testbed.bench_drafts.command:bench_drafts",
    ),
    "quality": Verb(
        "measure the effect of a loose rule: correct answers, speed",
        "opensled quality --model tiny --rule fly:theta=0.1 --items 100 --out quality",
        "lab.testbed.quality.config:QualityConfig",
        "lab.testbed.quality.command:quality",
        starts="verify_server",
    ),
    "profile list": Verb(
        "list profiles of devices, links, accelerators and targets",
        "opensled profile list --kind devices",
        "hw_profiles.command:ProfileListConfig",
        "hw_profiles.command:list_profiles",
    ),
    "profile show": Verb(
        "show one profile with its ranges and sources",
        "opensled profile show pi-5",
        "hw_profiles.command:ShowConfig",
        "hw_profiles.command:show_profile",
    ),
    "profile detect": Verb(
        "show the board of this device, and its state",
        "opensled profile detect --json",
        "hw_profiles.command:DetectConfig",
        "hw_profiles.command:detect_board",
    ),
    "profile calibrate": Verb(
        "measure the draft speed and the link of this machine",
        "opensled profile calibrate --server 192.0.2.1:7411",
        "edge_client.device.config:CalibrateConfig",
        "edge_client.doctor.calibrate:calibrate",
    ),
    "draft-tables build": Verb(
        "build a draft table from texts (drafts without a model)",
        "opensled draft-tables build --corpus letters/,notes.txt --out mine.table",
        "edge_client.drafters.tables_command:BuildConfig",
        "edge_client.drafters.tables_command:build",
    ),
    "train-head": Verb(
        "train a draft head for a target",
        "opensled train-head --target smollm2 --head specformer --out heads/mine",
        "lab.training.heads.config:TrainHeadConfig",
        "lab.training.heads.command:train_head",
    ),
    "train-pivots": Verb(
        "train a classifier for the loose rule pad",
        "opensled train-pivots --target tiny --draft tiny-draft --out pivots/mine",
        "lab.training.pivots.config:TrainPivotsConfig",
        "lab.training.pivots.command:train_pivots",
    ),
    "adapt": Verb(
        "train a draft model on texts of its target",
        "opensled adapt --draft tiny-draft --target tiny --out drafts/mine",
        "lab.training.adapting.config:AdaptConfig",
        "lab.training.adapting.command:adapt",
    ),
    "drafts keygen": Verb(
        "make a key for signing adapted drafts",
        "opensled drafts keygen --sign-key drafts.key",
        "adapt.handout.config:KeygenConfig",
        "adapt.handout.command:keygen",
    ),
    "drafts publish": Verb(
        "hand out an adapted draft to a tenant's devices",
        "opensled drafts publish drafts/mine --store handout/ \\\n"
        "      --tenant kitchen --sign-key drafts.key",
        "adapt.handout.config:PublishConfig",
        "adapt.handout.command:publish",
    ),
    "drafts list": Verb(
        "list the adapted drafts for devices",
        "opensled drafts list --store handout/",
        "adapt.handout.config:DraftListConfig",
        "adapt.handout.command:list_drafts",
    ),
    "drafts rollback": Verb(
        "hand out an earlier draft of a tenant",
        "opensled drafts rollback kitchen --store handout/ --sign-key drafts.key",
        "adapt.handout.config:RollbackConfig",
        "adapt.handout.command:rollback",
    ),
    "drafts delete": Verb(
        "delete the drafts of a tenant",
        "opensled drafts delete kitchen --store handout/",
        "adapt.handout.config:DraftDeleteConfig",
        "adapt.handout.command:delete_drafts",
    ),
    "drafts pull": Verb(
        "fetch the adapted draft for this device from its server",
        "opensled drafts pull --signer kitchen:7c9e4a1f...",
        "adapt.shelf.config:DraftPullConfig",
        "adapt.shelf.command:pull_draft",
    ),
    "pull": Verb(
        "download a model by its name, or from Hugging Face",
        "opensled pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0",
        "opensled.models.pull:PullConfig",
        "opensled.models.pull:pull",
    ),
    "config init": Verb(
        "print a sample configuration file",
        "opensled config init",
        "opensled.cli.config_command:InitConfig",
        "opensled.cli.config_command:init",
    ),
    "models list": Verb(
        "list the models on this machine, and those to download",
        "opensled models list",
        "opensled.models.models_command:ModelListConfig",
        "opensled.models.models_command:list_models",
    ),
    "models path": Verb(
        "print the path of a model",
        "opensled models path tiny-draft",
        "opensled.models.models_command:PathConfig",
        "opensled.models.models_command:print_path",
    ),
    "models eval": Verb(
        "evaluate the bundled models on held-out tasks",
        "opensled models eval --items-per-task 40",
        "opensled.models.models_command:EvalConfig",
        "lab.training.evaluate:models_eval",
    ),
}

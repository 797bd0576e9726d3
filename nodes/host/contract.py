"""The names of ComfyUI that the pack uses, all checked when ComfyUI loads it.

A name that a newer ComfyUI has renamed is one sentence at its start, not a traceback in the middle of a training. What
only some versions have is not in the list: it is checked where it is used, with `hasattr` or `getattr`.
"""

from __future__ import annotations

import importlib

from ... import __version__

ISSUES = "https://github.com/streamcache/streamcache/issues"
SHOWN = 3  # names in the sentence
# `module:name`, made from the code by `python tests/project/test_host_names.py`.
NAMES: tuple[str, ...] = (
    "comfy.cli_args:args.enable_cors_header",
    "comfy.cli_args:args.listen",
    "comfy.cli_args:args.max_upload_size",
    "comfy.latent_formats:SDXL",
    "comfy.ldm.modules.attention:attention_pytorch",
    "comfy.lora:load_lora",
    "comfy.lora:model_lora_keys_clip",
    "comfy.lora:model_lora_keys_unet",
    "comfy.lora_convert:convert_lora",
    "comfy.model_base:BaseModel.apply_model",
    "comfy.model_base:BaseModel.get_dtype",
    "comfy.model_base:BaseModel.process_latent_in",
    "comfy.model_base:HunyuanDiT",
    "comfy.model_base:SD21UNCLIP",
    "comfy.model_base:SDXL",
    "comfy.model_base:SDXLRefiner",
    "comfy.model_management:MIN_WEIGHT_MEMORY_RATIO",
    "comfy.model_management:current_loaded_models",
    "comfy.model_management:get_free_memory",
    "comfy.model_management:get_offload_stream",
    "comfy.model_management:get_torch_device",
    "comfy.model_management:get_total_memory",
    "comfy.model_management:in_training",
    "comfy.model_management:intermediate_dtype",
    "comfy.model_management:is_device_cpu",
    "comfy.model_management:load_models_gpu",
    "comfy.model_management:text_encoder_device",
    "comfy.model_management:text_encoder_dtype",
    "comfy.model_management:throw_exception_if_processing_interrupted",
    "comfy.model_management:unet_offload_device",
    "comfy.model_management:vae_device",
    "comfy.model_management:vae_dtype",
    "comfy.model_patcher:ModelPatcher.add_patches",
    "comfy.model_patcher:ModelPatcher.clone",
    "comfy.model_patcher:ModelPatcher.get_model_object",
    "comfy.model_patcher:ModelPatcher.is_dynamic",
    "comfy.model_patcher:ModelPatcher.model_size",
    "comfy.model_patcher:ModelPatcher.partially_load",
    "comfy.model_patcher:ModelPatcher.pre_run",
    "comfy.model_patcher:ModelPatcher.set_model_compute_dtype",
    "comfy.model_patcher:create_model_options_clone",
    "comfy.nested_tensor:NestedTensor",
    "comfy.ops:cast_bias_weight",
    "comfy.ops:disable_weight_init",
    "comfy.ops:uncast_bias_weight",
    "comfy.quant_ops",
    "comfy.sample:fix_empty_latent_channels",
    "comfy.sample:sample",
    "comfy.sampler_helpers:convert_cond",
    "comfy.sampler_helpers:prepare_model_patcher",
    "comfy.samplers:KSampler.SAMPLERS",
    "comfy.samplers:KSampler.SCHEDULERS",
    "comfy.samplers:cond_cat",
    "comfy.samplers:cond_equal_size",
    "comfy.samplers:encode_model_conds",
    "comfy.sd1_clip:ClipTokenWeightEncoder",
    "comfy.sd1_clip:SD1ClipModel",
    "comfy.sd1_clip:SD1Tokenizer",
    "comfy.sd:CLIP.__init__",
    "comfy.sd:CLIP.tokenize",
    "comfy.sd:CLIPType.STABLE_DIFFUSION",
    "comfy.sd:VAE.decode",
    "comfy.sd:VAE.throw_exception_if_invalid",
    "comfy.sd:load_clip",
    "comfy.sd:load_lora_for_models",
    "comfy.supported_models:SD3",
    "comfy.supported_models_base:ClipTarget",
    "comfy.taesd.taesd:TAESD",
    "comfy.utils:ProgressBar",
    "comfy.utils:load_torch_file",
    "comfy.utils:set_attr",
    "comfy.utils:unet_to_diffusers",
    "comfy_api.latest:ComfyExtension",
    "comfy_api.latest:io.Autogrow.Input",
    "comfy_api.latest:io.Autogrow.TemplatePrefix",
    "comfy_api.latest:io.Boolean.Input",
    "comfy_api.latest:io.Clip.Input",
    "comfy_api.latest:io.Clip.Output",
    "comfy_api.latest:io.Combo.Input",
    "comfy_api.latest:io.ComfyNode",
    "comfy_api.latest:io.Conditioning.Input",
    "comfy_api.latest:io.Conditioning.Output",
    "comfy_api.latest:io.ControlAfterGenerate.fixed",
    "comfy_api.latest:io.Custom",
    "comfy_api.latest:io.Float.Input",
    "comfy_api.latest:io.Hidden.prompt",
    "comfy_api.latest:io.Hidden.unique_id",
    "comfy_api.latest:io.Image.Input",
    "comfy_api.latest:io.Image.Output",
    "comfy_api.latest:io.Input",
    "comfy_api.latest:io.Int.Input",
    "comfy_api.latest:io.Int.Output",
    "comfy_api.latest:io.Latent.Input",
    "comfy_api.latest:io.Latent.Output",
    "comfy_api.latest:io.LoraModel.Input",
    "comfy_api.latest:io.LoraModel.Output",
    "comfy_api.latest:io.LossMap.Output",
    "comfy_api.latest:io.Model.Input",
    "comfy_api.latest:io.Model.Output",
    "comfy_api.latest:io.MultiType.Input",
    "comfy_api.latest:io.NodeOutput",
    "comfy_api.latest:io.Output",
    "comfy_api.latest:io.Schema",
    "comfy_api.latest:io.String.Input",
    "comfy_api.latest:io.String.Output",
    "comfy_api.latest:io.Vae.Input",
    "comfy_api.latest:io.Vae.Output",
    "comfy_api.latest:ui.PreviewImage",
    "comfy_api.latest:ui.PreviewText",
    "comfy_execution.graph_utils:ExecutionBlocker",
    "comfy_execution.utils:get_executing_context",
    "folder_paths:folder_names_and_paths.get",
    "folder_paths:get_filename_list",
    "folder_paths:get_folder_paths",
    "folder_paths:get_full_path",
    "folder_paths:get_full_path_or_raise",
    "folder_paths:get_input_directory",
    "folder_paths:get_output_directory",
    "folder_paths:get_system_user_directory",
    "folder_paths:get_temp_directory",
    "folder_paths:get_user_directory",
    "nodes:CLIPLoader",
    "nodes:CheckpointLoaderSimple",
    "nodes:DualCLIPLoader",
    "nodes:EmptyLatentImage",
    "nodes:UNETLoader",
    "nodes:VAEDecode",
    "nodes:VAELoader.vae_list",
    "nodes:common_ksampler",
    "server:PromptServer",
)


class HostChanged(RuntimeError):
    """This ComfyUI lacks a name that the pack needs."""


def check_host() -> None:
    """Raises a sentence with the missing names. Imports only modules that the pack imports anyway."""
    missing = [name.replace(":", ".") for name in NAMES if not _exists(name)]
    if missing:
        more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        raise HostChanged(
            f"StreamCache {__version__} does not fit ComfyUI {_host_version()}, which lacks "
            f"{', '.join(missing[:SHOWN])}{more}. Update StreamCache; if that is the newest version, report this at "
            f"{ISSUES}"
        )


def _exists(name: str) -> bool:
    module, _, path = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # ComfyUI itself lacks a package
        return False
    for part in path.split(".") if path else ():
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def _host_version() -> str:
    try:
        return importlib.import_module("comfyui_version").__version__
    except (ImportError, AttributeError):
        return "of an unknown version"

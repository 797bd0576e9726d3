"""The first example workflow: from example images to pictures that show the LoRA at work, without any model file."""

from .workflow import Node, Workflow

FOLDER, PROMPT = "examples/zogglewump", "a zogglewump on blue"
WITHOUT, WITH = "Without the LoRA", "With the LoRA"
SIDE, PICTURES = 128, 4
NOTE = """# First steps

Press **Run**. Nothing to download, and any computer will do: it takes about a minute or two.

1. **Image Folder Dataset** reads 12 example images with captions.
2. **Encode Dataset** and **Streamable Cache Save** encode them once.
3. **Train LoRA (StreamCache)** teaches the tiny model what a *zogglewump* is.
4. The pictures on the right: the same prompt and seed, without and with the LoRA.

**Next:** change the prompt, for example to *a zogglewump on green*, and run again: only the pictures are drawn again. \
Then drop your own captioned images onto the tab **Datasets** in the sidebar, and open a template for your model.
"""


def first_steps(w: Workflow) -> None:
    w.note(NOTE, 0, 340)
    tiny = w.add("StreamCacheTinyModels", 0)
    folder = w.add("StreamCacheImageFolder", 0, folder=FOLDER)
    plan = w.add("StreamCacheEncode", 1, source=folder(), vae=tiny(2), clip=tiny(1), resolution=SIDE)
    saved = w.add("StreamCacheCacheSave", 1, room=100, dataset=plan(), name="first_steps")
    prompt = w.add("CLIPTextEncode", 1, title="Prompt", room=60, clip=tiny(1), text=PROMPT)
    empty = w.add("CLIPTextEncode", 1, title="Negative prompt", room=60, clip=tiny(1), text="")
    trained = w.add(
        "StreamCacheTrain", 2, room=120, model=tiny(0), dataset=saved(), vae=tiny(2), prompts=prompt(),
        name="first_steps", steps=200, batch_size=4, learning_rate=2e-3, rank=16, targets="all",
    )  # fmt: skip
    latents = w.add("EmptyLatentImage", 2, width=SIDE, height=SIDE, batch_size=PICTURES)
    lora = w.add("LoraModelLoader", 3, model=tiny(0), lora=trained(0))
    drawn = [
        draw(w, f"Draw {title[0].lower()}{title[1:]}", model, prompt, empty, latents, tiny)
        for title, model in ((WITHOUT, tiny), (WITH, lora))
    ]
    for title, images in zip((WITHOUT, WITH), drawn, strict=True):
        w.add("PreviewImage", 4, title=title, room=300, images=images())


def draw(w: Workflow, title: str, model: Node, prompt: Node, empty: Node, latents: Node, tiny: Node) -> Node:
    """Samples in column 3 and decodes them in column 4."""
    links = {"model": model(), "positive": prompt(), "negative": empty(), "latent_image": latents()}
    settings = {"seed": 1, "steps": 20, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0}
    sampled = w.add("KSampler", 3, title=title, **links, **settings)
    return w.add("VAEDecode", 4, samples=sampled(), vae=tiny(2))

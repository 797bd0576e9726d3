// Training settings on a node, one group at a time: those of the chosen group that apply, and all that differ from their
// defaults. The others are hidden, not removed: workflows store the values of all of them by position.

import { words } from "../lib/words.js";

const NODES = ["StreamCacheTrain", "StreamCacheTrainOptions"];
const GROUPS = ["adapter", "learning", "objective", "memory", "data", "validation", "saving", "samples", "host", "run", "none"];
const PROPERTY = "StreamCache settings"; // in the saved workflow: the chosen group

/** Adds the list of groups to a node with training settings. */
export function showByGroup(node) {
  if (!NODES.includes(node.comfyClass)) return;
  const specs = readSpecs(node);
  // The last one: widgets are saved by position, and this one is not saved.
  const options = { values: GROUPS, serialize: false, getOptionLabel: (group) => words(`groups.${group}`) };
  const chooser = node.addWidget("combo", "group", GROUPS[0], (group) => {
    node.properties[PROPERTY] = group;
    arrange();
  }, options);
  chooser.serialize = false;
  chooser.label = words("groups.title");
  chooser.tooltip = words("groups.tooltip");
  const further = [...specs.values()].some((spec) => spec.advanced);
  if (further) setShown(chooser, { advanced: true, hidden: false });

  function arrange() {
    const saved = node.properties[PROPERTY];
    const group = GROUPS.includes(saved) ? saved : GROUPS[0];
    if (chooser.value !== group) chooser.value = group; // ComfyUI may still have that of an earlier node with this id
    const find = (name) => node.widgets.find((widget) => widget.name === name);
    for (const [name, spec] of specs) {
      const widget = find(name);
      if (!widget || (further && !spec.advanced)) continue; // a main setting
      const own = isLinked(node, name) || differs(widget.value, spec.default);
      const chosen = spec.group === group && applies(spec, specs, find, node);
      setShown(widget, { advanced: further && !own, hidden: !own && !chosen });
    }
    node.setSize([node.size[0], node.computeSize()[1]]);
    node.setDirtyCanvas?.(true, true);
  }

  const deciding = new Set([...specs.values()].flatMap((spec) => Object.keys(spec.needs)).flatMap(either));
  for (const widget of node.widgets) if (deciding.has(widget.name)) after(widget, "callback", arrange);
  for (const event of ["onAdded", "onConfigure", "onConnectionsChange"]) after(node, event, arrange);
  arrange();
}

function readSpecs(node) {
  const { required, optional } = node.constructor.nodeData?.input ?? {};
  const inputs = Object.entries({ ...required, ...optional });
  const found = inputs.filter(([, [, options]]) => options?.streamcache);
  return new Map(found.map(([name, [type, options]]) => {
    const first = options.options?.[0] ?? (Array.isArray(type) ? type[0] : "");
    return [name, { ...options.streamcache, advanced: Boolean(options.advanced), default: options.default ?? first }];
  }));
}

/** Whether a setting has an effect with the others as they are. One that comes from another node may have any value. */
function applies(spec, specs, find, node) {
  return Object.entries(spec.needs).every(([names, values]) => either(names).some((name) => {
    const widget = find(name);
    if (!widget || isLinked(node, name)) return true;
    return values ? values.includes(widget.value) : differs(widget.value, specs.get(name).default);
  }));
}

/** The settings that a need names: one, or several of which one is enough. */
function either(names) {
  return names.split("|");
}

function differs(value, usual) {
  return JSON.stringify(value ?? "") !== JSON.stringify(usual ?? "");
}

function isLinked(node, name) {
  return node.inputs?.some((input, slot) => (input.widget?.name ?? input.name) === name && node.isInputConnected(slot)) ?? false;
}

/** Nodes 2.0 watches the options of a widget's state, the classic canvas looks at the widget. */
function setShown(widget, { advanced, hidden }) {
  widget.advanced = advanced;
  widget.hidden = hidden;
  for (const options of new Set([widget.options, widget._state?.options])) {
    if (options) Object.assign(options, { advanced, hidden });
  }
}

function after(target, method, then) {
  const before = target[method];
  target[method] = function (...values) {
    const result = before?.apply(this, values);
    then();
    return result;
  };
}

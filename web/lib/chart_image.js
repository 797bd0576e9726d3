// Charts as one PNG: with their colors as they are on the page, a title and a legend.

const SCALE = 2; // pixels per pixel of the page
const EDGE = 16;
const LINE = 20;
const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "font-family", "font-size"];

/** `parts`: [{title, svg}] from top to bottom; `legend`: [{name, color, look}]; `style`: an element with the page's colors. */
export async function chartImage(title, parts, legend, style) {
  const shown = parts.filter(({ svg }) => svg.clientWidth);
  const width = Math.max(...shown.map(({ svg }) => svg.clientWidth)) + 2 * EDGE;
  const pen = document.createElement("canvas").getContext("2d");
  const { color, fontFamily, backgroundColor } = getComputedStyle(style);
  const rows = wrap(pen, legend, width - 2 * EDGE, fontFamily);
  const height = shown.reduce((sum, { svg }) => sum + svg.clientHeight + LINE, 3 * EDGE + LINE + rows.length * LINE);
  Object.assign(pen.canvas, { width: width * SCALE, height: height * SCALE });
  pen.scale(SCALE, SCALE);
  pen.fillStyle = backgroundColor;
  pen.fillRect(0, 0, width, height);
  let top = EDGE + 14;
  write(pen, title, EDGE, top, `600 15px ${fontFamily}`, color);
  for (const row of rows) {
    top += LINE;
    for (const { name, look, at, color: own } of row) {
      drawSample(pen, EDGE + at, top - 4, getColor(own, style), look);
      write(pen, name, EDGE + at + 24, top, `12px ${fontFamily}`, color);
    }
  }
  top += EDGE / 2;
  for (const { title: name, svg } of shown) {
    write(pen, name, EDGE, top + 14, `12px ${fontFamily}`, color);
    pen.drawImage(await picture(svg), EDGE, top + LINE, svg.clientWidth, svg.clientHeight);
    top += svg.clientHeight + LINE;
  }
  return new Promise((done) => pen.canvas.toBlob(done, "image/png"));
}

function write(pen, text, x, y, font, color) {
  Object.assign(pen, { font, fillStyle: color });
  pen.fillText(text, x, y);
}

/** The legend in rows; `at` is the place of a name in its row. */
function wrap(pen, legend, width, family) {
  const rows = [];
  let right = Infinity;
  pen.font = `12px ${family}`;
  for (const each of legend) {
    const needed = pen.measureText(each.name).width + 24 + EDGE;
    if (right + needed > width) {
      rows.push([]);
      right = 0;
    }
    rows.at(-1).push({ ...each, at: right });
    right += needed;
  }
  return rows;
}

function drawSample(pen, x, y, color, look = "") {
  pen.save();
  Object.assign(pen, { strokeStyle: color, fillStyle: color, lineWidth: 2.5, globalAlpha: look.includes("faint") ? 0.45 : 1 });
  pen.setLineDash(look.includes("dash-1") ? [7, 4] : look.includes("dash-2") || look.includes("dashed") ? [2, 3] : []);
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x + 18, y);
  pen.stroke();
  if (look.includes("dashed")) {
    pen.translate(x + 9, y);
    pen.rotate(Math.PI / 4);
    pen.fillRect(-3, -3, 6, 6);
  }
  pen.restore();
}

/** The value of a color such as var(--x), which a canvas does not know. */
function getColor(color, style) {
  const probe = document.createElement("i");
  probe.style.color = color;
  style.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** An SVG of the page as an image. Style sheets do not reach into images, so every element carries its own style. */
async function picture(svg) {
  const copy = svg.cloneNode(true);
  const [originals, copies] = [[...svg.querySelectorAll("*")], [...copy.querySelectorAll("*")]];
  originals.forEach((element, place) => {
    const found = getComputedStyle(element);
    copies[place].setAttribute("style", LOOKS.map((name) => `${name}:${found.getPropertyValue(name)}`).join(";"));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", svg.clientWidth * SCALE);
  copy.setAttribute("height", svg.clientHeight * SCALE);
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
  await image.decode();
  return image;
}

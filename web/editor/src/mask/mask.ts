/** Paints masks with one byte per pixel; 255 marks pixels to repaint. Independent of the page. */

export interface Mask {
  readonly width: number;
  readonly height: number;
  readonly values: Uint8ClampedArray;
}

export interface Brush {
  /** In pixels of the image. */
  readonly radius: number;
  /** From 0, soft from the centre, to 1, a hard edge. */
  readonly hardness: number;
  /** The maximum coverage of a stroke, from 0 to 1. */
  readonly opacity: number;
  readonly erases: boolean;
}

interface Point {
  readonly x: number;
  readonly y: number;
}

/** The changed area of a mask. */
export interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export function emptyMask(width: number, height: number): Mask {
  return { width, height, values: new Uint8ClampedArray(width * height) };
}

/**
 * Draws a straight segment of a stroke in place. Overlapping segments never exceed the stroke's
 * opacity. Points may be outside the image.
 */
export function drawPiece(mask: Mask, from: Point, to: Point, brush: Brush): Box {
  const { width, height, values } = mask;
  const { radius, hardness, opacity, erases } = brush;
  const left = Math.max(0, Math.floor(Math.min(from.x, to.x) - radius));
  const top = Math.max(0, Math.floor(Math.min(from.y, to.y) - radius));
  const right = Math.min(width, Math.ceil(Math.max(from.x, to.x) + radius));
  const bottom = Math.min(height, Math.ceil(Math.max(from.y, to.y) + radius));
  const [along, down] = [to.x - from.x, to.y - from.y];
  const length = along * along + down * down;
  const solid = radius * hardness;
  for (let y = top; y < bottom; y++)
    for (let x = left; x < right; x++) {
      const [right_, below] = [x + 0.5 - from.x, y + 0.5 - from.y];
      const place =
        length === 0 ? 0 : Math.min(1, Math.max(0, (right_ * along + below * down) / length));
      const distance = Math.hypot(right_ - place * along, below - place * down);
      if (distance > radius) continue;
      const cover = distance <= solid ? 1 : (radius - distance) / (radius - solid);
      const drawn = 255 * opacity * cover;
      const at = y * width + x;
      const present = values[at] ?? 0;
      values[at] = erases ? Math.min(present, 255 - drawn) : Math.max(present, drawn);
    }
  return { x: left, y: top, width: Math.max(0, right - left), height: Math.max(0, bottom - top) };
}

/** Fills the uncovered area connected to a point. */
export function fillFrom({ width, height, values }: Mask, { x, y }: Point): void {
  const start = Math.floor(y) * width + Math.floor(x);
  if (x < 0 || y < 0 || x >= width || y >= height) return;
  const waiting = [start];
  for (let at = waiting.pop(); at !== undefined; at = waiting.pop()) {
    if ((values[at] ?? 255) >= 128) continue;
    values[at] = 255;
    if (at % width > 0) waiting.push(at - 1);
    if (at % width < width - 1) waiting.push(at + 1);
    if (at >= width) waiting.push(at - width);
    if (at < width * (height - 1)) waiting.push(at + width);
  }
}

export function inverted({ values, ...mask }: Mask): Mask {
  return { ...mask, values: values.map((value) => 255 - value) };
}

/** Returns the RGBA pixels for a PNG with the mask: transparent where the mask covers. */
export function alphaPixels({ values }: Mask): Uint8ClampedArray<ArrayBuffer> {
  const pixels = new Uint8ClampedArray(4 * values.length);
  for (let at = 0; at < values.length; at++) pixels[4 * at + 3] = 255 - (values[at] ?? 0);
  return pixels;
}

/** Reads a mask from the alpha of an image's pixels. */
export function maskOf(pixels: Uint8ClampedArray, width: number, height: number): Mask {
  const mask = emptyMask(width, height);
  for (let at = 0; at < mask.values.length; at++)
    mask.values[at] = 255 - (pixels[4 * at + 3] ?? 255);
  return mask;
}

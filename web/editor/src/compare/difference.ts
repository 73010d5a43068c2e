/** Compares two images pixel by pixel. Pure. */

/** Red, green, blue and alpha of each pixel, in the order of `ImageData`. */
export interface Pixels {
  readonly width: number;
  readonly height: number;
  readonly data: Uint8ClampedArray;
}

export interface Difference {
  /** The differences, multiplied by `gain`. */
  readonly pixels: Uint8ClampedArray<ArrayBuffer>;
  /** The largest difference of a channel, from 0 to 255. */
  readonly most: number;
  /** The share of pixels that differ, from 0 to 1. */
  readonly share: number;
}

const CHANNELS = 4;

/** Returns the difference without alpha; null if the sizes differ. */
export function difference(one: Pixels, other: Pixels, gain: number): Difference | null {
  if (one.width !== other.width || one.height !== other.height) return null;
  const pixels = new Uint8ClampedArray(one.data.length);
  let most = 0;
  let unequal = 0;
  for (let at = 0; at < pixels.length; at += CHANNELS) {
    let here = 0;
    for (let channel = at; channel < at + CHANNELS - 1; channel++) {
      const apart = Math.abs((one.data[channel] ?? 0) - (other.data[channel] ?? 0));
      pixels[channel] = gain * apart;
      here = Math.max(here, apart);
    }
    pixels[at + CHANNELS - 1] = 255;
    most = Math.max(most, here);
    if (here > 0) unequal++;
  }
  return { pixels, most, share: (unequal * CHANNELS) / (pixels.length || 1) };
}

export function differenceText({ most, share }: Difference): string {
  if (most === 0) return "identical";
  const percent = 100 * share;
  return `${percent < 0.1 ? "less than 0.1" : percent.toFixed(1)} % of the pixels differ, by ${most} of 255 at most`;
}

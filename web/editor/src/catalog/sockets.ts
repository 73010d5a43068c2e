/** Assigns colours to sockets and links by type. */

const NAMED: Readonly<Record<string, number>> = {
  MODEL: 0,
  CLIP: 1,
  VAE: 2,
  CONDITIONING: 3,
  LATENT: 4,
  IMAGE: 5,
  MASK: 6,
  CONTROL_NET: 7,
};

/** Returns one of eight colours for a type. */
export function socketColour(type: string): number {
  const named = NAMED[type];
  if (named !== undefined) return named;
  let sum = 0;
  for (const letter of type) sum = (sum * 31 + letter.charCodeAt(0)) % 8;
  return sum;
}

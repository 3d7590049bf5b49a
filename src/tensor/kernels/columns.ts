/** Images as columns of patches, so that a convolution is a matrix product (Chellapilla et al., 2006). */
import type { ConvolutionGeometry, Floats } from './kernels';

/** Call `visit` for each row of the image that a row of patches meets: where it is, and where the patches' row is. */
function eachPatchRow(
  geometry: ConvolutionGeometry,
  imageOffset: number,
  visit: (imageRow: number, columnsRow: number, firstX: number) => void,
): void {
  const { channels, height, width, kernelHeight, kernelWidth, outHeight, outWidth } = geometry;
  let columnsRow = 0;
  for (let channel = 0; channel < channels; channel++) {
    for (let ky = 0; ky < kernelHeight; ky++) {
      for (let kx = 0; kx < kernelWidth; kx++) {
        for (let oy = 0; oy < outHeight; oy++, columnsRow += outWidth) {
          const y = oy * geometry.strideHeight + ky - geometry.paddingHeight;
          if (y < 0 || y >= height) continue; // padding
          visit(imageOffset + (channel * height + y) * width, columnsRow, kx - geometry.paddingWidth);
        }
      }
    }
  }
}

export function imageToColumns(
  columns: Floats,
  image: Floats,
  imageOffset: number,
  geometry: ConvolutionGeometry,
): void {
  const { width, outWidth, strideWidth } = geometry;
  columns.fill(0);
  eachPatchRow(geometry, imageOffset, (imageRow, columnsRow, firstX) => {
    for (let ox = 0, x = firstX; ox < outWidth; ox++, x += strideWidth) {
      if (x >= 0 && x < width) columns[columnsRow + ox] = image[imageRow + x] as number;
    }
  });
}

export function columnsToImage(
  image: Floats,
  imageOffset: number,
  columns: Floats,
  geometry: ConvolutionGeometry,
): void {
  const { width, outWidth, strideWidth } = geometry;
  eachPatchRow(geometry, imageOffset, (imageRow, columnsRow, firstX) => {
    for (let ox = 0, x = firstX; ox < outWidth; ox++, x += strideWidth) {
      if (x >= 0 && x < width)
        image[imageRow + x] = (image[imageRow + x] as number) + (columns[columnsRow + ox] as number);
    }
  });
}

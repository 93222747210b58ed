/* Ninefold from C99: the headers, designated initialisers, statuses and the error text. */
#include <math.h>
#include <ninefold/softmax.h>
#include <ninefold/vector_add.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void check(int holds, const char* what) {
  if (holds) return;
  printf("failed: %s (last error: %s)\n", what, nf_last_error());
  ++failures;
}

int main(void) {
  float x[6] = {1, 2, 3, 1000, 1000, 1000}, y[6], dy[6] = {1, 0, 0, 0, 2, 0}, dx[6];
  int64_t shape[2] = {2, 3};
  const DLDataType fp32 = {kDLFloat, 32, 1};
  const DLDevice cpu = {kDLCPU, 0};
  const DLTensor tx = {.data = x, .device = cpu, .ndim = 2, .dtype = fp32, .shape = shape};
  const DLTensor ty = {.data = y, .device = cpu, .ndim = 2, .dtype = fp32, .shape = shape};
  const DLTensor tdy = {.data = dy, .device = cpu, .ndim = 2, .dtype = fp32, .shape = shape};
  const DLTensor tdx = {.data = dx, .device = cpu, .ndim = 2, .dtype = fp32, .shape = shape};
  int i;

  check(strcmp(nf_last_error(), "") == 0, "no error text before any failure");
  check(strcmp(nf_last_launch(), "") == 0, "no launch text before any call");
  check(strlen(nf_version()) >= 5 && strncmp(nf_build_info(), "cpu", 3) == 0, "version and build");

  check(nf_softmax_forward(&(nf_softmax_args){.x = &tx, .y = &ty}, NULL) == NF_OK, "forward");
  check(fabs(y[0] - 0.09003057) < 1e-6 && fabs(y[2] - 0.66524096) < 1e-6, "its values");
  for (i = 3; i < 6; ++i) check(fabs(y[i] - 1.0 / 3) < 1e-6, "large logits");
  check(strstr(nf_last_launch(), "softmax forward cpu rung=") != NULL, "the launch text");

  check(nf_softmax_backward(&(nf_softmax_args){.y = &ty, .dy = &tdy, .dx = &tdx}, NULL) == NF_OK,
        "backward");
  check(fabs(dx[0] - 0.09003057 * (1 - 0.09003057)) < 1e-6, "its values");
  check(fabs(dx[3] + 2.0 / 9) < 1e-6 && fabs(dx[4] - 4.0 / 9) < 1e-6, "its second row");

  check(nf_vector_add_forward(&(nf_vector_add_args){.x = &tx, .y = &tdy, .z = &ty}, NULL) == NF_OK,
        "vector_add");
  check(y[0] == 2 && y[4] == 1002, "its values");

  check(nf_softmax_forward(&(nf_softmax_args){.x = &tx}, NULL) == NF_INVALID_ARGUMENT, "no y");
  check(strstr(nf_last_error(), "y") != NULL, "its text");
  check(nf_softmax_forward(NULL, NULL) == NF_INVALID_ARGUMENT, "no args");
  return failures != 0;
}

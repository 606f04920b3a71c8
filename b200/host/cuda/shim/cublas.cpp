// A handle of cuBLASLt: programs ask for one at their start. Nothing can be done with it, since what
// computes is refused by name. It is compiled for programs that call one of these (../stand_in.py).
extern "C" {

int cublasLtCreate(void** handle) {
  static char only;
  *handle = &only;
  return 0;  // CUBLAS_STATUS_SUCCESS
}
int cublasLtDestroy(void*) { return 0; }

}  // extern "C"

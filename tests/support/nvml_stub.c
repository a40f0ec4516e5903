/* A stand-in for NVIDIA's management library: one laptop card, whose power can't be read. */
#include <string.h>

typedef struct { unsigned int gpu, memory; } Use;
static int card;

int nvmlInitWithFlags(unsigned int flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = &card; return strcmp(uuid, "MIG-1") ? 6 : 0; }
int nvmlDeviceGetUtilizationRates(void *device, Use *use) { use->gpu = 37; use->memory = 5; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned int *milliwatts) { return 3; } /* not supported */
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned int *degrees) { *degrees = 61; return 0; }
int nvmlDeviceGetClockInfo(void *device, int kind, unsigned int *mhz) { *mhz = 1800; return 0; }
const char *nvmlErrorString(int result) { return result == 3 ? "Not Supported" : "Not Found"; }
